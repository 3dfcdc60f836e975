from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mqd.options import ConfigError
from mqd.peers import PeerNode, Peers, format_peers, load_peers, parse_peers

PATH = Path("peers.toml")
HEAD = 'cluster_id = "c"\n'


def node(node_id: int, **more: object) -> str:
    keys = {
        "id": node_id,
        "host": '"10.0.0.1"',
        "port": 9000 + node_id,
        "peer_port": 9100 + node_id,
        **more,
    }
    return "\n[[node]]\n" + "".join(
        f"{key} = {value}\n" for key, value in keys.items() if value is not None
    )


def parsed(text: str) -> Peers:
    return parse_peers(text, PATH)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_cluster_of_six() -> None:
    peers = parsed(HEAD + "".join(node(i) for i in range(6)))
    assert peers.cluster_id == "c"
    assert list(peers.nodes) == [0, 1, 2, 3, 4, 5]
    assert list(peers.voters) == [0, 1, 2, 3, 4]
    assert peers.require(3) == PeerNode(3, "10.0.0.1", 9003, 9103, None, True, "10.0.0.1", 9003)


def test_every_field_that_may_be_set() -> None:
    first = node(1, rack='"r"', voter="true", advertised_host='"b.example"', advertised_port=29092)
    peers = parsed(HEAD + first + node(2, voter="false"))
    assert peers.nodes[1] == PeerNode(1, "10.0.0.1", 9001, 9101, "r", True, "b.example", 29092)
    assert list(peers.voters) == [1]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (node(1), "peers.toml:", ["cluster_id is missing", 'cluster_id = "..."']),
        ('cluster_id = ""' + node(1), "line 1:", ["invalid cluster_id"]),
        ("cluster_id = 5" + node(1), "line 1:", ["invalid cluster_id"]),
        (HEAD, "peers.toml:", ["the file has no nodes", "[[node]]"]),
        (HEAD + "node = 1", "line 2:", ["the file has no nodes"]),
        (
            'clusterid = "c"' + node(1),
            "line 1:",
            ["unknown key clusterid", "did you mean cluster_id?"],
        ),
        (HEAD + node(1, prot=1), "line 8:", ["unknown key prot", "did you mean port?"]),
        (HEAD + node(1, zzz=1), "line 8:", ["unknown key zzz", "the keys are id, host"]),
        (
            HEAD + node(1) + node(2, peer_port=None),
            "line 9:",
            ["has no peer_port", "add peer_port"],
        ),
        (HEAD + node(1, id=-1), "line 4:", ["id -1 is out of range", "from 0 to 2147483647"]),
        (HEAD + node(1, id="true"), "line 4:", ["id True"]),
        (HEAD + node(1, port=0), "line 6:", ["port 0", "from 1 to 65535"]),
        (HEAD + node(1, port=65536), "line 6:", ["port 65536 is out of range", "from 1 to 65535"]),
        (HEAD + node(1, port='"9092"'), "line 6:", ["port '9092' is not a whole number"]),
        (
            HEAD + node(1, peer_port=9001),
            "line 7:",
            ["10.0.0.1:9001 is already the port of node 1"],
        ),
        (
            HEAD + node(1) + node(1, port=1, peer_port=2),
            "line 10:",
            ["id 1 is already the id of the node of line 3"],
        ),
        (
            HEAD + node(1) + node(2, port=9001),
            "line 12:",
            ["10.0.0.1:9001 is already the port of node 1", "a different address"],
        ),
        (
            HEAD + node(1) + node(2, peer_port=9001),
            "line 13:",
            ["10.0.0.1:9001 is already the port of node 1"],
        ),
        (
            HEAD + node(1, host='"127.0.0.1"') + node(2, host='"localhost"', port=9001),
            "line 12:",
            ["is already the port of node 1"],
        ),
        (
            HEAD + node(1, host='"::1"') + node(2, host='"LOCALHOST"', peer_port=9101),
            "line 13:",
            ["already the peer_port of node 1"],
        ),
        (
            HEAD + node(1) + node(2, advertised_port=9001),
            "line 14:",
            ["already the advertised address of node 1"],
        ),
        (HEAD + node(1, host='""'), "line 5:", ["host ''"]),
        (HEAD + node(1, host='"http://a"'), "line 5:", ["without scheme"]),
        (HEAD + node(1, host='"a:9092"'), "line 5:", ["has a port"]),
        (HEAD + node(1, host='"[::1]"'), "line 5:", ["without brackets"]),
        (
            HEAD + node(1, host='"0.0.0.0"'),
            "line 5:",
            ["clients cannot connect to 0.0.0.0", "set advertised_host"],
        ),
        (HEAD + node(1, advertised_host='"::"'), "line 8:", ["clients cannot connect to ::"]),
        (HEAD + node(1, rack=5), "line 8:", ["rack 5", "in quotes"]),
        (HEAD + node(1, voter='"yes"'), "line 8:", ["voter 'yes'", "voter = true"]),
        (HEAD + node(1, voter="false"), "peers.toml:", ["the cluster has no voters"]),
        (HEAD + "[[node\n", "peers.toml:", ["not valid TOML", "line 2"]),
    ],
)
def test_a_bad_file_is_refused_with_place_and_remedy(
    text: str, place: str, words: list[str]
) -> None:
    message = refusal(text)
    assert message.startswith("peers.toml")
    assert place in message
    for word in words:
        assert word in message


def test_wildcards_are_fine_to_listen_on() -> None:
    assert (
        parsed(HEAD + node(1, host='"0.0.0.0"', advertised_host='"b"')).nodes[1].host == "0.0.0.0"
    )
    assert parsed(HEAD + node(1, host='"fe80::1"')).nodes[1].host == "fe80::1"


def test_inline_tables_are_read_and_refused_without_a_line() -> None:
    text = 'cluster_id="c"\nnode = [{id=1, host="a", port=1, peer_port=%s}]'
    assert list(parsed(text % 2).nodes) == [1]
    assert "peer_port 0" in refusal(text % 0)


def test_a_node_that_is_not_there() -> None:
    with pytest.raises(
        ConfigError,
        match=r"peers\.toml: node 9 does not exist; existing nodes: 1, 2; choose",
    ):
        parsed(HEAD + node(1) + node(2)).require(9)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"peers\.toml: no such file; write one"):
        load_peers(tmp_path / "peers.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_peers(tmp_path)
    (tmp_path / "peers.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="byte 0 is not UTF-8"):
        load_peers(tmp_path / "peers.toml")


@given(st.integers(1, 5), st.data())
def test_written_files_are_read_back(count: int, data: st.DataObject) -> None:
    ports = data.draw(
        st.lists(st.integers(1, 65535), min_size=3 * count, max_size=3 * count, unique=True)
    )
    nodes = {}
    for i in range(count):
        port, peer_port, advertised = ports[3 * i : 3 * i + 3]
        host, other = (
            data.draw(st.sampled_from(["h", "::1", "10.0.0.1"])),
            data.draw(st.sampled_from(["h", "b.example"])),
        )
        rack = data.draw(st.sampled_from([None, "a", 'a "b" \\ é']))
        voter = i == 0 or data.draw(st.booleans())
        nodes[i] = PeerNode(
            i,
            host,
            port,
            peer_port,
            rack,
            voter,
            other,
            data.draw(st.sampled_from([port, advertised])),
        )
    assert parsed(format_peers("c-1", nodes)) == Peers("c-1", nodes, PATH)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed(text)
    except ConfigError as error:
        assert str(error).startswith("peers.toml")


# -- the cluster secret

SECRET = "sixteen letters, or more"


def with_secret(line: str) -> str:
    return f'cluster_id = "c"\n{line}\n[[node]]\nid = 1\nhost = "a"\nport = 1\npeer_port = 2\n'


def test_a_cluster_secret_is_read_and_never_shown(tmp_path: Path) -> None:
    peers = parse_peers(with_secret(f'cluster_secret = "{SECRET}"'), tmp_path / "peers.toml")
    assert peers.secret == SECRET.encode() and SECRET not in repr(peers)
    assert parse_peers(with_secret(""), tmp_path / "peers.toml").secret is None


def test_a_cluster_secret_may_be_in_a_separate_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "secret").write_text(SECRET + "\n")
    text = with_secret('cluster_secret_file = "secret"')
    peers = parse_peers(text, tmp_path / "etc" / "peers.toml")
    assert peers.secret == SECRET.encode()
    again = parse_peers(
        format_peers("c", peers.nodes, secret_file="secret"), tmp_path / "etc" / "peers.toml"
    )
    assert again.secret == peers.secret


@pytest.mark.parametrize(
    ("mode", "result"),
    [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o644, True)],
)
@pytest.mark.parametrize("holder", ["peers of mqd.toml", "secret"])
def test_a_secret_that_others_can_read_gives_a_warning(
    tmp_path: Path, holder: str, mode: int, result: bool
) -> None:
    path, secret = tmp_path / "peers of mqd.toml", tmp_path / "secret"
    secret.write_text(SECRET)
    path.write_text(
        with_secret(
            'cluster_secret_file = "secret"'
            if holder == "secret"
            else f'cluster_secret = "{SECRET}"'
        )
    )
    (tmp_path / holder).chmod(mode)
    warnings = load_peers(path).warnings
    assert len(warnings) == result
    for warning in warnings:
        quoted = f"'{path}'" if holder != "secret" else str(secret)
        assert (
            f"secret in {tmp_path / holder}," in warning
            and f": run chmod 600 {quoted}, and" in warning
        )
        assert SECRET not in warning and "\n" not in warning


def test_a_peers_file_without_the_secret_may_be_read_by_all(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(with_secret(""))
    path.chmod(0o644)
    assert load_peers(path).warnings == ()


@pytest.mark.parametrize(
    ("line", "content", "reason"),
    [
        (
            'cluster_secret = "short"',
            None,
            r"line 2: cluster_secret is not a string of .*; create one with `openssl",
        ),
        ("cluster_secret = 12345678901234567", None, "cluster_secret is not a string"),
        (f'cluster_secret = "{"x" * 1025}"', None, "cluster_secret is not a string"),
        ('cluster_secret_file = ""', None, "is not a file name; write it in quotes"),
        (
            'cluster_secret_file = "secret"',
            None,
            "line 2: the cluster secret in .*secret cannot be read .*readable by this user",
        ),
        (
            'cluster_secret_file = "secret"',
            b"short\n",
            "the cluster secret in '.*secret' has 5 characters, 16 to 1024 are needed; create one "
            "with `openssl rand -base64 32`",
        ),
        ('cluster_secret_file = "secret"', b"x" * 9000, "has more than 1024 characters"),
        ('cluster_secret_file = "secret"', b"\xff" * 20, "is not UTF-8 text"),
        (
            f'cluster_secret = "{SECRET}"\ncluster_secret_file = "secret"',
            b"",
            "are both set; remove one of them",
        ),
    ],
)
def test_invalid_cluster_secrets(
    tmp_path: Path, line: str, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_peers(with_secret(line), tmp_path / "peers.toml")
    assert SECRET not in str(caught.value) and "short" not in str(caught.value)
