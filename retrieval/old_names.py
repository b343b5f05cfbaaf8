"""Old names of commands and options: each still works, is hidden from the help, and says its new name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Old command -> the present one. An option in an old name has to be given, too; the first match counts.
COMMANDS = {
    "duplicates": "check duplicates",
    "suspects": "check suspects",
    "leakage": "check leakage",
    "inspect": "check quality",
    "models": "model",
    "index decisions --labels": "check decide",
    "index decisions --undo": "check undo",
    "index decisions": "check decisions",
    "index update": "index sync",
    "index watch": "index sync --watch",
    "index compact": "index optimize --compact",
}
# Present command -> its old options, with {} for the value. What becomes an argument goes to the end.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "check suspects": {"--most": "--limit {}"},
    "check quality": {
        "--most": "--limit {}",
        **{
            f"--{fault}": f"--threshold {fault}={{}}"
            for fault in ("blurred", "dark", "flat", "tiny", "narrow", "alone")
        },
    },
    "export": {
        f"--from-{library}": f"--from {library}:{{}}"
        for library in ("timm", "torchvision", "open-clip", "transformers", "hub")
    },
    "check decide": {"--labels": "{}"},
    "check undo": {"--undo": "{}"},
}


def renew(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Replace the old names on a command line.

    Args:
        words: The words after `lookalike`.

    Returns:
        The words with the present names, and a line for people on each old one.
    """
    new, notes = list(words), []
    for old, present in COMMANDS.items():
        names = [name for name in old.split() if not name.startswith("-")]
        options = [name for name in old.split() if name.startswith("-")]
        if new[: len(names)] == names and all(map(_names(new).__contains__, options)):
            new = [*present.split(), *new[len(names) :]]
            notes.append(f"`lookalike {' '.join(names)}` is now `lookalike {present}`")
            break
    command = next((name for name in OPTIONS if new[: len(name.split())] == name.split()), None)
    return (new, notes) if command is None else _renew_options(new, OPTIONS[command], notes)


def _names(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def _renew_options(
    words: Sequence[str], known: Mapping[str, str], notes: list[str]
) -> tuple[list[str], list[str]]:
    found, last = list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in known:
            found.append(word)
            continue
        new = known[name]
        value = value if equals else next(rest, "")
        option, _, filled = new.rpartition(" ")
        if option:
            found += [option, filled.replace("{}", value)]
        else:
            last.append(value)
        notes.append(f"{name} is now {new.replace('{}', 'VALUE')}")
    return [*found, *last], notes
