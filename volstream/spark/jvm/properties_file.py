"""Properties files of Java, in ASCII: what reads them takes them for Latin-1 or for UTF-8."""

from __future__ import annotations

from collections.abc import Mapping


def properties_text(values: Mapping[str, str]) -> str:
    """Returns ``values`` as a properties file."""
    return "".join(f"{escaped(key, ' :=#!')}={escaped(value, '#!')}\n" for key, value in sorted(values.items()))


def escaped(text: str, special: str) -> str:
    """Escapes a key or value of a properties file; ``special`` are the characters that would end it there."""
    out = []
    for position, character in enumerate(text):
        if character == "\\" or character in special or (character == " " and position == 0):
            out.append("\\" + character)
        elif character in "\n\r\t\f":
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}[character])
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be")
            out.extend(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return "".join(out)
