"""Questions with a short line of thought and an answer. Each function returns `(question, thought, answer)`.

The wording of a question is varied again by `chat.py` (capitals, marks, politeness, slips of the finger).
"""

import facts
import knowledge as k
from grammar import article, expand, join, number_word, sentence
from stories import HEROES, MASS, short_story, story


def small_talk(rng):
    """Greetings, thanks, questions about the model."""
    questions, answers = rng.choice(facts.SMALL_TALK[:1] * 3 + facts.SMALL_TALK[7:9] * 2 + facts.SMALL_TALK)
    question, answer = rng.choice(questions.split(";")), rng.choice(answers.split(";"))
    if answer == "@fact":
        answer = rng.choice(k.ANIMALS)[10]
        return question, "The user wants to hear something. I can tell a fact.", answer
    if answer == "@joke":
        return question, "The user wants a joke.", rng.choice(facts.JOKES)
    return question, rng.choice(["This is small talk. I answer in a friendly way.", "A friendly answer is enough."]), answer


def explanation(rng):
    """Facts from the table of explanations."""
    questions, answer = rng.choice(facts.EXPLANATIONS)
    question = rng.choice(questions)
    if question.startswith(("what is ", "what are ")) and rng.random() < 0.4:
        subject = question.split(" ", 2)[2]
        if not subject.startswith(("the largest", "the biggest", "the highest", "the tallest", "the fastest", "the smallest")):
            question = expand(rng, "[explain {s}|can you explain {s}|do you know what {s} is|what {s} is|{s}|define {s}]", s=subject)
            if question.startswith("what ") or question.startswith("do you know what"):
                question = f"can you tell me about {subject}"
    return question, "I know a short explanation of this.", answer


def capital(rng):
    """Capitals, continents and languages of countries, both ways."""
    country, city, continent, language = rng.choice(k.COUNTRIES)
    draw = rng.random()
    if draw < 0.5:
        question = expand(rng, "[what is the capital of {c}|what's the capital of {c}|capital of {c}|which city is the capital of {c}|"
                          "do you know the capital of {c}|tell me the capital of {c}|name the capital of {c}|the capital of {c}|"
                          "what is the capital city of {c}|{c}: capital]", c=country)
        return question, f"The capital of {country} is {city}.", f"The capital of {country} is {city}."
    if draw < 0.65:
        question = expand(rng, "[{city} is the capital of which country|which country has the capital {city}|in which country is "
                          "{city}|where is {city}|what country is {city} in]", city=city)
        home = next(c[0] for c in k.COUNTRIES if c[1] == city)
        if "where is" in question or "in " in question:
            return question, f"{city} is in {home}.", f"{city} is in {home}. It is the capital of the country."
        return question, f"{city} is the capital of {home}.", f"{city} is the capital of {home}."
    if draw < 0.8:
        question = expand(rng, "[where is {c}|on which continent is {c}|which continent is {c} on|in which part of the world is {c}|"
                          "is {c} in {x}]", c=country, x=rng.choice(["Europe", "Asia", "Africa", "South America"]))
        if question.startswith("is "):
            yes = question.endswith(continent)
            return question, f"{sentence(country)} is in {continent}.", \
                (f"Yes, {country} is in {continent}." if yes else f"No, {country} is in {continent}.")
        return question, f"{sentence(country)} is in {continent}.", f"{sentence(country)} is in {continent}."
    if draw < 0.92:
        question = expand(rng, "[which language do people speak in {c}|what language is spoken in {c}|what do people speak in {c}|"
                          "what is the language of {c}]", c=country)
        return question, f"The main language is {language}.", f"Many people in {country} speak {language}."
    question = expand(rng, "[tell me about {c}|what do you know about {c}|what is {c}|tell me something about {c}]", c=country)
    return question, f"{sentence(country)} is a country in {continent}.", \
        f"{sentence(country)} is a country in {continent}. Its capital is {city}, and many people there speak {language}."


def animal(rng):
    """What animals are, say, eat, look like and can do."""
    name, plural, kind, legs, sound, home, food, colour, young, size, fact = rng.choice(k.ANIMALS)
    a_name, legs = article(name), int(legs)
    draw = rng.randrange(10)
    if draw == 0:
        question = expand(rng, "[what does {a} say|what sound does {a} make|which sound does {a} make|what noise does {a} make|what do "
                          "{p} say|how does {a} sound]", a=a_name, p=plural)
        if sound == "no sound":
            return question, f"{sentence(a_name)} is silent.", f"{sentence(a_name)} does not make a sound that we can hear."
        if " " in sound or sound in ("song", "snuffle"):
            return question, f"The sound is {article(sound) if ' ' not in sound else sound}.", \
                f"{sentence(a_name)} makes {sound if sound.startswith('a ') else article(sound)}."
        return question, f"The sound is {sound}.", f"{sentence(a_name)} says \"{sound}\"."
    if draw == 1:
        question = expand(rng, "[how many legs does {a} have|how many legs do {p} have|how many legs has {a}|number of legs of {a}]",
                          a=a_name, p=plural)
        count = number_word(legs) if legs else "no"
        return question, f"{sentence(a_name)} has {count} legs.", f"{sentence(a_name)} has {count} legs."
    if draw == 2:
        question = expand(rng, "[where does {a} live|where do {p} live|where can i find {p}|what is the home of {a}]", a=a_name, p=plural)
        return question, f"{sentence(plural)} live {home}.", f"{sentence(plural)} live {home}."
    if draw == 3:
        question = expand(rng, "[what does {a} eat|what do {p} eat|what is the food of {a}|what do {p} like to eat]", a=a_name, p=plural)
        return question, f"{sentence(plural)} eat {food}.", f"{sentence(plural)} eat {food}."
    if draw == 4:
        question = expand(rng, "[what colour is {a}|what color is {a}|which colour do {p} have|what color are {p}]", a=a_name, p=plural)
        if colour == "many colours":
            return question, f"{sentence(plural)} have many colours.", f"{sentence(plural)} come in many colours."
        return question, f"The colour is {colour}.", f"Most {plural} are {colour}."
    if draw == 5:
        question = expand(rng, "[what is a baby {n} called|what do you call a young {n}|what is a young {n} called|what is the name for a "
                          "baby {n}|what do you call a baby {n}]", n=name)
        return question, f"A young {name} is {article(young)}.", f"A young {name} is called {article(young)}."
    if draw == 6:
        verb, group = rng.choice([("fly", k.FLYERS), ("swim", k.SWIMMERS)])
        if name in ("cat", "lion", "wolf", "fox", "crow", "mouse", "pig", "cow", "rabbit", "goat", "sheep", "camel", "snake",
                    "crocodile", "octopus", "shark", "zebra", "squirrel", "hedgehog", "monkey", "bat", "kangaroo") and verb == "swim":
            group = k.SWIMMERS | {"octopus", "crocodile", "shark"}
            if name not in group:
                verb, group = "fly", k.FLYERS
        if name in ("ant", "snail", "spider", "chicken", "parrot", "owl", "lizard", "butterfly", "bee", "giraffe") and verb == "swim":
            verb, group = "fly", k.FLYERS
        if name in ("ant", "chicken") and verb == "fly":
            return f"what is {a_name}", f"{sentence(a_name)} is {article(kind)}.", f"{sentence(a_name)} is {article(kind)}. {fact}"
        can = name in group
        question = expand(rng, "[can {a} {v}|can {p} {v}|is {a} able to {v}|do {p} {v}]", a=a_name, p=plural, v=verb)
        return question, f"{sentence(plural)} {'can' if can else 'cannot'} {verb}.", \
            (f"Yes, {plural} can {verb}." if can else f"No, {plural} cannot {verb}.")
    if draw == 7:
        other = rng.choice(k.ANIMALS)
        question = expand(rng, "[what kind of animal is {a}|is {a} a mammal|is {a} a bird|is {a} an insect|is {a} a fish|is {a} an animal|is {a} "
                          "{o}]", a=a_name, o=article(other[0]))
        wanted = question.split()[-1]
        thought = f"{sentence(a_name)} is {article(kind)}."
        if question.startswith("what"):
            return question, thought, f"{sentence(a_name)} is {article(kind)}."
        yes = wanted in (kind, "animal", name)
        tail = article("animal") if wanted == "animal" else article(wanted) if yes else article(kind)
        return question, thought, f"{'Yes' if yes else 'No'}, {a_name} is {tail}."
    if draw == 8:
        other = rng.choice([o for o in k.ANIMALS if abs(int(o[9]) - int(size)) >= 2])
        big = int(size) > int(other[9])
        word = rng.choice(["bigger", "larger", "smaller"])
        first, second = (name, other[0]) if big == (word != "smaller") else (other[0], name)
        order = [name, other[0]]
        rng.shuffle(order)
        question = expand(rng, "[which is {w}, {x} or {y}|what is {w}, {x} or {y}|who is {w}, {x} or {y}|is {x} {w} than {y}]",
                          w=word, x=article(order[0]), y=article(order[1]))
        thought = f"{sentence(article(first))} is {word} than {article(second)}."
        if question.startswith("is "):
            return question, thought, ("Yes, " if order[0] == first else "No, ") + thought[0].lower() + thought[1:]
        return question, thought, thought
    question = expand(rng, "[tell me about {p}|what do you know about {p}|tell me something about {p}|what is {a}|describe {a}|tell me "
                      "about the {n}|what are {p}|i like {p}]", p=plural, a=a_name, n=name)
    text = f"{sentence(a_name)} is {article(kind)}. {sentence(plural)} live {home} and eat {food}. {fact}"
    return question, f"{sentence(a_name)} is {article(kind)}.", text


def thing(rng):
    """What everyday things are, are for and look like."""
    name, what, colour, use = rng.choice(k.THINGS)
    a_name = name if name in MASS else article(name)
    draw = rng.random()
    if draw < 0.5:
        question = expand(rng, "[what is {a}|what's {a}|what is {n}|explain what {a} is|tell me what {a} is|define {n}|tell me about {a}|do you "
                          "know what {a} is]", a=a_name, n=name)
        return question, f"{sentence(a_name)} is {what}.", f"{sentence(a_name)} is {what}."
    if draw < 0.8:
        question = expand(rng, "[what is {a} for|what do you use {a} for|what do we need {a} for|what can i do with {a}|why do people use {a}]",
                          a=a_name)
        return question, f"It is for {use}.", f"{sentence(a_name)} is for {use}."
    if colour in ("many colours", "clear"):
        colour_text = "can have many colours" if colour == "many colours" else "is clear"
    else:
        colour_text = f"is {colour}"
    question = expand(rng, "[what colour is {a}|what color is {a}|which colour does {a} have|what color does {a} have]", a=a_name)
    return question, f"{sentence(a_name)} {colour_text}.", f"{sentence(a_name)} {colour_text}."


def colour(rng):
    """Things with a well-known colour."""
    name, value = rng.choice(k.COLOURS)
    draw = rng.random()
    if draw < 0.8:
        question = expand(rng, "[what colour is {n}|what color is {n}|which colour is {n}|what is the colour of {n}|what is the color of {n}|"
                          "tell me the colour of {n}|color of {n}]", n=name)
        return question, f"{sentence(name)} is {value}.", f"{sentence(name)} is {value}."
    wrong = rng.choice([c for c in ("red", "blue", "green", "yellow", "black", "white", "pink") if c != value])
    asked = rng.choice([value, wrong])
    return f"is {name} {asked}", f"{sentence(name)} is {value}.", f"{'Yes' if asked == value else 'No'}, {name} is {value}."


def words(rng):
    """Opposites, synonyms, plurals, past tenses, rhymes and translations."""
    draw = rng.random()
    if draw < 0.4:
        first, second = rng.choice(k.OPPOSITES[:-1])
        if rng.random() < 0.5 and second not in ("old", "light", "short", "hard", "right", "full", "quiet"):
            first, second = second, first
        if first in ("light", "old", "short", "right", "hard", "wrong", "false", "dark", "quiet"):
            second = {"light": "dark", "old": "young", "short": "long", "right": "left", "hard": "soft", "wrong": "right",
                      "false": "true", "dark": "light", "quiet": "loud"}[first]
        if first == "happy":
            second = "sad"
        question = expand(rng, "[what is the opposite of {w}|opposite of {w}|the opposite of {w}|what's the opposite of {w}|tell me the opposite "
                          "of {w}|which word is the opposite of {w}|give me the opposite of {w}|what is the opposite of \"{w}\"]", w=first)
        return question, f"The opposite of {first} is {second}.", f"The opposite of \"{first}\" is \"{second}\"."
    if draw < 0.5:
        first, second = rng.choice(k.SYNONYMS)
        question = expand(rng, "[what is another word for {w}|another word for {w}|give me a synonym of {w}|what is a synonym for {w}|which word "
                          "means the same as {w}]", w=first)
        return question, f"{sentence(second)} means the same as {first}.", f"Another word for \"{first}\" is \"{second}\"."
    if draw < 0.6:
        first, second = rng.choice(k.PLURALS + [(a[0], a[1]) for a in k.ANIMALS])
        question = expand(rng, "[what is the plural of {w}|plural of {w}|what's the plural of {w}|tell me the plural of {w}]", w=first)
        return question, f"One {first}, two {second}.", f"The plural of \"{first}\" is \"{second}\"."
    if draw < 0.7:
        first, second = rng.choice(k.PAST)
        question = expand(rng, "[what is the past tense of {w}|past tense of {w}|what is the past of {w}|what's the past tense of {w}]", w=first)
        return question, f"Today I {first}, yesterday I {second}.", f"The past tense of \"{first}\" is \"{second}\"."
    if draw < 0.8:
        first, second = rng.choice(k.RHYMES)
        if rng.random() < 0.5 and second not in ("chair", "king"):
            first, second = second, first
        question = expand(rng, "[what rhymes with {w}|which word rhymes with {w}|give me a rhyme for {w}|find a rhyme for {w}]", w=first)
        return question, f"{sentence(first)} and {second} sound alike.", f"\"{sentence(second)}\" rhymes with \"{first}\"."
    row, column = rng.choice(k.WORDS), rng.randrange(4)
    question = expand(rng, "[how do you say {w} in {l}|what is {w} in {l}|translate {w} into {l}|translate \"{w}\" to {l}|what is the {l} word for "
                      "{w}|how do i say {w} in {l}|{w} in {l}]", w=row[0], l=k.LANGUAGES[column])
    return question, f"The {k.LANGUAGES[column]} word is {row[column + 1]}.", f"\"{sentence(row[0])}\" in {k.LANGUAGES[column]} is \"{row[column + 1]}\"."


def lists(rng):
    """Lists on request."""
    kind = rng.choice(list(k.LISTS))
    count = rng.choice([2, 3, 3, 3, 4, 5, 5, 6])
    chosen = rng.sample(k.LISTS[kind], count)
    shown = rng.choice([str(count), number_word(count)])
    question = expand(rng, "[name {n} {k}|tell me {n} {k}|list {n} {k}|give me {n} {k}|can you name {n} {k}|what are {n} {k}|write down {n} {k}|"
                      "give me a list of {n} {k}|say {n} {k}]", n=shown, k=kind)
    if rng.random() < 0.25:
        body = "\n".join(f"{i + 1}. {sentence(word)}" for i, word in enumerate(chosen))
        return question + rng.choice([" as a list", " in a numbered list", ", one on each line"]), f"I need {count} {kind}.", body
    return question, f"I need {count} {kind}.", f"{sentence(number_word(count))} {kind} are {join(chosen)}."


def calendar(rng):
    """Days and months in order."""
    if rng.random() < 0.5:
        i, names, what = rng.randrange(7), k.DAYS, "day"
    else:
        i, names, what = rng.randrange(12), k.MONTHS, "month"
    step = rng.choice([1, -1])
    other = names[(i + step) % len(names)]
    draw = rng.random()
    if draw < 0.2 and what == "month":
        question = expand(rng, "[how many days are in {m}|how many days does {m} have|number of days in {m}]", m=names[i])
        extra = ", and 29 in a leap year" if i == 1 else ""
        return question, f"{names[i]} has {k.MONTH_DAYS[i]} days.", f"{names[i]} has {k.MONTH_DAYS[i]} days{extra}."
    question = expand(rng, "[which {w} comes {r} {d}|what {w} comes {r} {d}|what comes {r} {d}|what is the {w} {r} {d}|which {w} is {r} {d}]",
                      w=what, r="after" if step == 1 else "before", d=names[i])
    relation = "after" if step == 1 else "before"
    return question, f"{other} comes {relation} {names[i]}.", f"{other} comes {relation} {names[i]}."


def job(rng):
    """What people do at work."""
    name, does, where = rng.choice(k.JOBS)
    a_name = article(name)
    if rng.random() < 0.7:
        question = expand(rng, "[what does {a} do|what is {a}|what is the job of {a}|what does {a} do at work|tell me what {a} does]", a=a_name)
        return question, f"{sentence(a_name)} {does}.", f"{sentence(a_name)} {does}."
    question = expand(rng, "[who {d}|which job is it: somebody {d}]", d=does)
    return question, f"That is {a_name}.", f"{sentence(a_name)} {does}."


def shape(rng):
    """Sides of shapes."""
    name, sides = rng.choice(k.SHAPES)
    question = expand(rng, "[how many sides does {a} have|how many corners does {a} have|number of sides of {a}|how many sides has {a}]", a=article(name))
    word = "corners" if "corners" in question else "sides"
    return question, f"{sentence(article(name))} has {sides} {word}.", f"{sentence(article(name))} has {number_word(sides)} {word}."


def tell_story(rng):
    """Stories on request, with the wished hero."""
    draw = rng.random()
    if draw < 0.25:
        question = expand(rng, "[tell me a story|tell a story|i want to hear a story|write a story|a story please|can you tell me a story|tell me "
                          "another story|write a short story|do you know a story|story time|once upon a time]")
        return question, "The user wants a story. I will make one up.", story(rng)
    hero = rng.choice(HEROES)
    name = None
    if draw < 0.4:
        girl = rng.random() < 0.5
        name = rng.choice(k.GIRLS if girl else k.BOYS)
        hero = "little girl" if girl else "little boy"
        about = expand(rng, "[{h} called {n}|{h} named {n}|{n}]", h=article("girl" if girl else "boy"), n=name)
    else:
        about = expand(rng, "[{a}|{t}|the {h}]", a=article(hero), h=hero, t=article(expand(rng, "[small|brave|clever|little|young]") + " " + hero)
                       if not hero.startswith(("old", "little")) else article(hero))
    question = expand(rng, "[tell me a story about {a}|tell a story about {a}|write a story about {a}|i want a story about {a}|a story about {a}|can you "
                      "tell me a story about {a}|story about {a}|make up a story about {a}|please tell me about the adventures of {a}]", a=about)
    if rng.random() < 0.2 and name is None:
        return expand(rng, "[tell me a short story about {a}|write a very short story about {a}|a short story about {a}]", a=about), \
            f"A short story about {article(hero)}.", short_story(rng, hero)
    return question, f"The story should be about {name or article(hero)}.", story(rng, hero, name)


def write_sentence(rng):
    """A sentence or a small poem with a wished word."""
    name, what, colour_, use = rng.choice(k.THINGS)
    creature = rng.choice(k.ANIMALS)
    if rng.random() < 0.5:
        word = rng.choice([name, creature[0]])
        question = expand(rng, "[use the word {w} in a sentence|make a sentence with {w}|write a sentence with the word {w}|write a sentence about {a}|give "
                          "me a sentence with \"{w}\"]", w=word, a=article(word))
        lead = word if word in MASS else f"the {word}"
        text = expand(rng, "[Yesterday I saw {l} in the garden.|My friend told me about {l}.|{L} was on the table this morning.|We looked at {l} for a "
                      "long time.]", l=lead, L=sentence(lead)) if word == name else \
            expand(rng, "[I have never seen {a} in our street.|Yesterday I saw {a} in a book.|The {w} looked at me and went away.]", w=word, a=article(word))
        return question, f"I need a sentence with {word}.", text
    first, second = rng.choice([r for r in k.RHYMES if r[0] in ("tree", "star", "moon", "night", "day", "sky", "sea", "snow", "rain")])
    about = creature[0]
    lines = {"tree": ["sat under a tree", "and gave a flower to a bee"], "star": ["looked up at a star", "that shone so bright, that shone so far"],
             "moon": ["looked at the moon", "and ate its soup with a silver spoon"], "night": ["sang all night", "and danced with joy in the silver light"],
             "day": ["came out one day", "to run and jump, to laugh and play"], "sky": ["looked up at the sky", "and saw the clouds go sailing by"],
             "sea": ["went to the sea", "and came back home in time for tea"], "snow": ["walked in the snow", "and did not know which way to go"],
             "rain": ["sang in the rain", "and then the sun came out again"]}[first]
    question = expand(rng, "[write a poem about {a}|a poem about {a}|can you write a poem about {a}|write a short poem about {a}|write me a rhyme about {a}|"
                      "tell me a poem about {a}]", a=article(about))
    return question, f"A short poem about {article(about)}.", f"A [little|small|happy|lonely] {about} {lines[0]}".replace(
        "[little|small|happy|lonely]", rng.choice(["little", "small", "happy", "lonely"])) + f",\n{lines[1]}."
