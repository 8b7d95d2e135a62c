"""A tiny text grammar: `[a|b|c]` is a free choice, `{name}` a slot. Choices may nest and may hold slots."""

import re

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def expand(rng, text, **slots):
    """Makes every choice in `text`, then fills the slots."""
    while "[" in text:
        text = _CHOICE.sub(lambda match: rng.choice(match.group(1).split("|")), text)
    return text.format(**slots) if slots else text


def article(word):
    """`word` with its indefinite article."""
    return ("an " if word[0].lower() in "aeiou" and not word.startswith(("uni", "one")) else "a ") + word


def sentence(text):
    """`text` with a capital first letter."""
    return text[:1].upper() + text[1:]


def join(words, last="and"):
    """A list in words: "a, b and c"."""
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" {last} " + words[-1]


_ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_word(n):
    """0..999 in words."""
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + ("-" + _ONES[n % 10] if n % 10 else "")
    rest = n % 100
    return _ONES[n // 100] + " hundred" + (" and " + number_word(rest) if rest else "")
