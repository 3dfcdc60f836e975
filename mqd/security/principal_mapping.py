"""From the name in a client's certificate to its principal: `ssl.principal.mapping.rules`. A core.

A rule is `RULE:pattern/replacement/` with an optional L or U (lower or upper case), or DEFAULT. The
first rule whose pattern matches the whole name decides. Then each match in the name is replaced.
Patterns and replacements have the syntax of Java, as in Kafka's SslPrincipalMapper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mqd.config import ConfigError
from mqd.java_translation import compile_java_pattern
from mqd.security.distinguished_name import subject_of
from mqd.security.principal import ANONYMOUS, USER, Principal

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE = re.compile(r"\$([0-9]+)|\$(?:\{(\w+)\})?|\\(.)")
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
        if self.pattern.fullmatch(name) is None:
            return None
        result = _replace_all(self.pattern, self.replacement, name)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


def _replace_all(pattern: re.Pattern[str], template: str, text: str) -> str:
    """Java's `replaceAll`: unlike in `re.sub`, the search after an empty match begins one character
    later.
    """
    parts: list[str] = []
    copied = start = 0
    while start <= len(text) and (found := pattern.search(text, start)) is not None:
        parts += (text[copied : found.start()], found.expand(template))
        copied = found.end()
        start = copied + (found.start() == copied)
    return "".join(parts) + text[copied:]


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
            compiled = compile_java_pattern(pattern)
            template = _template(replacement, compiled)
        except ValueError as error:
            raise ConfigError(
                f"ssl.principal.mapping.rules: `{pattern}/{replacement}` is not a regular "
                f"expression of Java with its replacement: {error}"
            ) from None
        rules.append(_Rule(compiled, template, case))
    return rules


def _template(replacement: str, pattern: re.Pattern[str]) -> str:
    """Java's `$1` as Python's `\\g<1>`. As in Kafka, `$` is literal before a number without a
    group. Raises ValueError.
    """
    parts: list[str] = []
    position = 0
    for found in _REFERENCE.finditer(replacement):
        parts.append(replacement[position : found.start()])
        position = found.end()
        digits, name, escaped = found.groups()
        if escaped is not None:
            parts.append(escaped.replace("\\", r"\\"))
        elif digits is not None:
            parts.append(_number_reference(digits, pattern.groups))
        elif name in pattern.groupindex:
            parts.append(f"\\g<{name}>")
        else:
            raise ValueError(f"'{found[0]}' in the replacement is no group; write \\$ for a dollar")
    parts.append(replacement[position:])
    return "".join(parts)


def _number_reference(digits: str, groups: int) -> str:
    """Java takes as many digits as give a group."""
    if int(digits[0]) > groups:
        return f"${digits}"
    end = 1
    while end < len(digits) and int(digits[: end + 1]) <= groups:
        end += 1
    return f"\\g<{digits[:end]}>{digits[end:]}"
