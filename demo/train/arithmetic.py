"""Numbers: sums, comparisons, counting, and small word problems. Functions as in `questions.py`."""

import knowledge as k
from grammar import expand, join, number_word, sentence


def _small(rng, top):
    return rng.randint(0, 20) if rng.random() < 0.5 else rng.randint(0, top)


def calculate(rng):
    """The four operations, in figures and in words."""
    kind = rng.choice("++++--***/")
    if kind == "+":
        a, b = _small(rng, 99), _small(rng, 99)
        result, word, text = a + b, "[plus|and|+]", "[add {a} and {b}|what is the sum of {a} and {b}|sum of {a} and {b}]"
    elif kind == "-":
        a, b = _small(rng, 99), _small(rng, 99)
        a, b = max(a, b), min(a, b)
        result, word, text = a - b, "[minus|-]", "[subtract {b} from {a}|take {b} away from {a}|what is the difference between {a} and {b}]"
    elif kind == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        result, word, text = a * b, "[times|*|x|multiplied by]", "[multiply {a} by {b}|multiply {a} and {b}|what is the product of {a} and {b}]"
    else:
        b, result = rng.randint(1, 12), rng.randint(0, 12)
        a = b * result
        word, text = "[divided by|/|over]", "[divide {a} by {b}|what do i get when i divide {a} by {b}|how often does {b} go into {a}]"
    word = expand(rng, word)
    as_words = rng.random() < 0.12
    shown = (number_word(a), number_word(b)) if as_words else (str(a), str(b))
    if rng.random() < 0.8:
        glue = f"{shown[0]} {word} {shown[1]}" if as_words or word[0].isalpha() or rng.random() < 0.5 else f"{a}{word}{b}"
        question = expand(rng, "[what is {g}|what's {g}|{g}|calculate {g}|how much is {g}|{g} =|compute {g}|tell me what {g} is|what does {g} make|"
                          "can you calculate {g}|do you know {g}|what is {g} equal to|whats {g}|solve {g}|{g} is what]", g=glue)
    else:
        question = expand(rng, text, a=shown[0], b=shown[1])
    sign = {"+": "+", "-": "-", "*": "*", "/": "/"}[kind]
    spoken = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[kind]
    thought = f"{a} {sign} {b} = {result}."
    if kind == "+" and a > 9 and b > 9:
        thought = f"{a} + {b} = {a} + {b // 10 * 10} + {b % 10} = {a + b // 10 * 10} + {b % 10} = {result}."
    if kind == "-" and b > 9:
        thought = f"{a} - {b} = {a} - {b // 10 * 10} - {b % 10} = {a - b // 10 * 10} - {b % 10} = {result}."
    if as_words:
        answer = f"{sentence(shown[0])} {spoken} {shown[1]} is {number_word(result)}."
    else:
        answer = f"{a} {spoken} {b} is {result}."
    return question, thought, answer


def compare(rng):
    """Which number is larger; is it even."""
    a = rng.randint(0, 100)
    b = rng.choice([n for n in range(0, 101) if n != a])
    draw = rng.random()
    if draw < 0.5:
        word = rng.choice(["bigger", "larger", "greater", "smaller"])
        first = min(a, b) if word == "smaller" else max(a, b)
        other = a + b - first
        question = expand(rng, "[which is {w}, {a} or {b}|which number is {w}, {a} or {b}|what is {w}, {a} or {b}|is {a} {w} than {b}]", w=word, a=a, b=b)
        thought = f"{first} is {word} than {other}."
        if question.startswith("is "):
            return question, thought, f"{'Yes' if a == first else 'No'}, {thought}"
        return question, thought, thought
    even = a % 2 == 0
    asked = rng.choice(["even", "odd"])
    question = expand(rng, "[is {a} even or odd|is {a} {x}|is {a} an {x} number|is the number {a} {x}]", a=a, x=asked)
    truth = "even" if even else "odd"
    thought = f"The last digit of {a} is {a % 10}, so {a} is {truth}."
    if " or " in question:
        return question, thought, f"{a} is {truth}."
    return question, thought, f"{'Yes' if asked == truth else 'No'}, {a} is {truth}."


def count(rng):
    """Counting up, down and in steps; what comes next."""
    draw = rng.random()
    start = rng.choice([1, 1, 1, 1, rng.randint(0, 30)])
    length = rng.choice([3, 5, 5, 10, 10, rng.randint(3, 20)])
    if draw < 0.5:
        end = start + length - 1 if start != 1 else max(2, length)
        figures = ", ".join(str(n) for n in range(start, end + 1))
        shown = (str(start), str(end)) if rng.random() < 0.7 or end > 20 else (number_word(start), number_word(end))
        forms = "[count from {a} to {b}|can you count from {a} to {b}|count {a} to {b}|please count from {a} up to {b}|write the numbers from {a} to {b}|list the " \
                "numbers from {a} to {b}]"
        if start == 1:
            forms = "[count to {b}|can you count to {b}|count up to {b}|" + forms[1:]
        return expand(rng, forms, a=shown[0], b=shown[1]), f"I count from {start} to {end}.", figures + "."
    if draw < 0.65:
        top = rng.choice([3, 5, 10, 10, rng.randint(3, 20)])
        question = expand(rng, "[count backwards from {a}|count down from {a}|count from {a} to 1|count down from {a} to 1|countdown from {a}]", a=top)
        return question, f"I count down from {top}.", ", ".join(str(n) for n in range(top, 0, -1)) + "."
    if draw < 0.8:
        step = rng.choice([2, 2, 3, 5, 10])
        top = rng.choice([5, 6, 8, 10])
        question = expand(rng, "[count in steps of {s}|count by {w}|give me the first {n} multiples of {s}|count in {w}]", s=step, w=number_word(step) + "s", n=top)
        return question, f"I add {step} each time.", ", ".join(str(step * n) for n in range(1, (top if "first" in question else 10) + 1)) + "."
    n = rng.randint(0, 120)
    up = rng.random() < 0.6
    question = expand(rng, "[what number comes {r} {n}|which number comes {r} {n}|what comes {r} {n}|what is the number {r} {n}]", r="after" if up else "before",
                      n=n if up else n + 1)
    base = n if up else n + 1
    result = n + 1 if up else n
    return question, f"{base} {'+' if up else '-'} 1 = {result}.", f"{result} comes {'after' if up else 'before'} {base}."


def problem(rng):
    """Word problems of one step."""
    name = rng.choice(k.GIRLS + k.BOYS)
    he = "she" if name in k.GIRLS else "he"
    item = rng.choice(["apples", "balls", "books", "pens", "cherries", "stones", "coins", "eggs", "flowers", "cups"])
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    draw = rng.random()
    if draw < 0.4:
        text = expand(rng, "[{n} has {a} {i} and [gets|finds|buys] {b} more. How many {i} does {n} have now?|{n} has {a} {i}. {H} [finds|buys|gets] {b} more. How many "
                      "{i} does {h} have?|if I have {a} {i} and [get|buy] {b} more, how many {i} do I have?]", n=name, a=a, b=b, i=item, h=he, H=sentence(he))
        who = "You have" if "do I" in text else f"{name} has"
        return text, f"{a} + {b} = {a + b}.", f"{who} {a + b} {item}."
    if draw < 0.8:
        a, b = max(a, b) + 1, min(a, b)
        text = expand(rng, "[{n} has {a} {i} and [loses|gives away|sells] {b}. How many {i} does {n} have left?|{n} has {a} {i}. {H} [loses|gives away] {b} of them. How "
                      "many {i} are left?|if I have {a} {i} and give away {b}, how many are left?]", n=name, a=a, b=b, i=item, h=he, H=sentence(he))
        left = a - b
        word = item if left != 1 else {"cherries": "cherry"}.get(item, item[:-1])
        return text, f"{a} - {b} = {left}.", f"{left} {word} {'are' if left != 1 else 'is'} left."
    a, b = rng.randint(2, 10), rng.randint(2, 10)
    text = expand(rng, "[there are {a} boxes with {b} {i} in each box. How many {i} are there?|{n} has {a} bags with {b} {i} each. How many {i} are there in all?]", n=name,
                  a=a, b=b, i=item)
    return text, f"{a} * {b} = {a * b}.", f"There are {a * b} {item}."


def in_words(rng):
    """Numbers written out, and back."""
    n = rng.randint(0, 100) if rng.random() < 0.8 else rng.randint(0, 999)
    if rng.random() < 0.6:
        question = expand(rng, "[write {n} in words|how do you write {n} in words|spell the number {n}|what is {n} in words|say {n} in words]", n=n)
        return question, f"{n} is {number_word(n)}.", f"{n} in words is \"{number_word(n)}\"."
    question = expand(rng, "[write {w} as a number|write {w} in figures|which number is {w}|what is {w} as a number]", w=number_word(n))
    return question, f"{sentence(number_word(n))} is {n}.", f"{sentence(number_word(n))} is {n}."


def extreme(rng):
    """The largest, smallest, or sorted numbers of a list."""
    numbers = rng.sample(range(0, 100), rng.choice([3, 3, 4, 5]))
    shown = join(map(str, numbers))
    draw = rng.random()
    if draw < 0.4:
        word = rng.choice(["largest", "biggest", "smallest"])
        pick = min(numbers) if word == "smallest" else max(numbers)
        question = expand(rng, "[which is the {w}: {s}|what is the {w} of {s}|which of these numbers is the {w}: {s}|the {w} number of {s}]", w=word, s=shown)
        return question, f"The {word} number is {pick}.", f"The {word} number is {pick}."
    question = expand(rng, "[sort these numbers: {s}|put these numbers in order: {s}|sort {s}|order the numbers {s}]", s=shown)
    return question, "From the smallest to the largest.", ", ".join(map(str, sorted(numbers))) + "."
