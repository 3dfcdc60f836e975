"""From the name in a client's certificate to its principal: `ssl.principal.mapping.rules`. A core.

A rule is `RULE:pattern/replacement/` with an optional L or U (lower or upper case), or DEFAULT. The
first rule whose pattern matches the whole name decides, as in Kafka's SslPrincipalMapper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mqd.config import ConfigError
from mqd.security.distinguished_name import subject_of
from mqd.security.principal import ANONYMOUS, USER, Principal

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_RULES_LENGTH_MAX = 8192


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """None: DEFAULT."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The short name. None if the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        result = found.expand(self.replacement)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


class PrincipalMapping:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises ConfigError."""
        self._rules = _parse(rules)

    def short_name(self, distinguished_name: str) -> str:
        """Raises ValueError if no rule matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name.strip()
        raise ValueError(
            f"No rules apply to {distinguished_name}, rules in ssl.principal.mapping.rules"
        )

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a client with this certificate (DER). Raises ValueError."""
        if certificate is None:
            return ANONYMOUS
        return Principal(USER, self.short_name(subject_of(certificate)))


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    position = 0
    text = text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None or len(text) > _RULES_LENGTH_MAX:
            raise ConfigError(
                f"ssl.principal.mapping.rules: invalid rule: `{text[position:]}`; write "
                "RULE:pattern/replacement/ with L or U at the end, or DEFAULT"
            )
        position = found.end()
        default, pattern, replacement, case = found.groups()
        if default:
            rules.append(_Rule(None))
            continue
        try:
            compiled = re.compile(pattern)
            template = _template(replacement, compiled.groups)
        except re.error as error:
            raise ConfigError(
                f"ssl.principal.mapping.rules: `{pattern}` is not a regular expression: {error}"
            ) from None
        rules.append(_Rule(compiled, template, case))
    return rules


def _template(replacement: str, groups: int) -> str:
    """Java's `$1` as Python's `\\g<1>`. As in Kafka, `$` is literal before a number without a
    group.
    """
    parts: list[str] = []
    position = 0
    for found in re.finditer(r"\$(\d)|\\(.)", replacement):
        parts.append(replacement[position : found.start()].replace("\\", r"\\"))
        position = found.end()
        digit, escaped = found.groups()
        if digit is None:
            parts.append(escaped.replace("\\", r"\\"))
        elif 0 <= int(digit) <= groups:
            parts.append(f"\\g<{digit}>")
        else:
            parts.append(f"${digit}")
    parts.append(replacement[position:].replace("\\", r"\\"))
    return "".join(parts)
