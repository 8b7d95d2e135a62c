"""Tasks on the text of the conversation itself: copying, spelling, the date, names, and what the model does not know."""

import knowledge as k
from grammar import article, expand, join, number_word, sentence
from stories import HEROES, STORY_THINGS

WORD_POOL = sorted({w for w in [a[0] for a in k.ANIMALS] + [t[0] for t in k.THINGS] + [o for p in k.OPPOSITES for o in p] + STORY_THINGS +
                    [w for values in k.LISTS.values() for w in values] + k.GIRLS + k.BOYS + [j[0] for j in k.JOBS] +
                    [c[1] for c in k.COUNTRIES] if " " not in w})
SYLLABLES = "ba be bo ca co da de di do fa fi ga go ha ho ja jo ka ki la le li lo ma me mi mo na ne no pa pe po ra ri ro sa se so ta te to va vi wa za".split()
# Scripts and emoji for byte-exact copying.
SCRIPTS = [(0x3b1, 0x3c9), (0x430, 0x44f), (0x5d0, 0x5ea), (0x627, 0x64a), (0x905, 0x939), (0xe01, 0xe2e), (0x3041, 0x3096), (0x30a1, 0x30f6),
           (0x4e00, 0x9fa0), (0xac00, 0xd7a3), (0x1f300, 0x1f5ff), (0x1f600, 0x1f64f), (0x1f900, 0x1f9ff), (0x13000, 0x13400), (0xc0, 0xff), (0x2190, 0x21ff)]


def made_up(rng):
    """A word that nobody has seen."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4))) + rng.choice(["", "", "n", "s", "r", "l", "x"])


def foreign(rng):
    """Some characters of one script."""
    low, high = rng.choice(SCRIPTS)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5)))


def phrase(rng):
    """Something to copy."""
    draw = rng.random()
    if draw < 0.15:
        return " ".join(foreign(rng) for _ in range(rng.randint(1, 3)))
    if draw < 0.25:
        return made_up(rng)
    if draw < 0.35:
        return str(rng.randint(0, 10 ** rng.randint(1, 6)))
    if draw < 0.5:
        return expand(rng, "[hello world|good morning|I like {p}|the {a} is {c}|I am happy|this is a test|we go home|{n} has a {t}|nice to see you|it is a fine day]",
                      p=rng.choice(k.ANIMALS)[1], a=rng.choice(HEROES), c=rng.choice(k.LISTS["colours"]), n=rng.choice(k.GIRLS + k.BOYS), t=rng.choice(STORY_THINGS))
    return " ".join(rng.choice(WORD_POOL) for _ in range(rng.randint(1, 5)))


def repeat(rng):
    """Say it again."""
    text = phrase(rng)
    if rng.random() < 0.15:
        count = rng.randint(2, 5)
        question = expand(rng, "[say {{t}} {n} times|repeat {{t}} {n} times|write {{t}} {n} times]", n=number_word(count)).replace("{t}", text)
        return question, f"I say it {number_word(count)} times.", " ".join([text] * count)
    marks = rng.choice(["{t}", "\"{t}\"", "{t}"])
    question = expand(rng, "[repeat after me: @|repeat: @|say @|please say @|repeat the words @|write @|can you say @|copy this text: @|echo @|repeat @|say the words @|answer "
                      "with @|say this: @|type @|reply with @|just say @]").replace("@", marks.replace("{t}", text))
    return question, "I only have to repeat it.", text


def spell(rng):
    """Letters of words."""
    word = made_up(rng) if rng.random() < 0.25 else rng.choice(WORD_POOL)
    letters = word.lower()
    draw = rng.random()
    if draw < 0.55:
        question = expand(rng, "[spell {w}|how do you spell {w}|spell the word {w}|can you spell {w}|please spell {w}|how is {w} spelled|what are the letters of {w}|spell "
                          "\"{w}\"]", w=word)
        return question, "Letter by letter.", "-".join(letters.upper()) + "."
    if draw < 0.7:
        which = rng.choice(["first", "last"])
        letter = letters[0] if which == "first" else letters[-1]
        question = expand(rng, "[what is the {x} letter of {w}|which letter comes {x} in {w}|the {x} letter of {w}|what's the {x} letter of the word {w}]", x=which, w=word)
        return question, f"{word}: " + "-".join(letters.upper()) + ".", f"The {which} letter of \"{word}\" is \"{letter}\"."
    if draw < 0.85:
        question = expand(rng, "[how many letters are in {w}|how many letters does {w} have|how many letters has the word {w}|count the letters of {w}]", w=word)
        counted = ", ".join(f"{c.upper()} {i + 1}" for i, c in enumerate(letters))
        return question, counted + ".", f"The word \"{word}\" has {number_word(len(letters))} letters."
    if draw < 0.93:
        question = expand(rng, "[spell {w} backwards|write {w} backwards|what is {w} backwards|reverse the word {w}]", w=word)
        return question, "-".join(letters.upper()) + ".", f"\"{sentence(word)}\" backwards is \"{letters[::-1]}\"."
    i = rng.randrange(25)
    after = rng.random() < 0.6
    base, other = (i, i + 1) if after else (i + 1, i)
    question = expand(rng, "[which letter comes {r} {b}|what comes {r} {b} in the alphabet|what letter is {r} {b}]", r="after" if after else "before", b=k.LETTERS[base].upper())
    relation = "after" if after else "before"
    return question, f"{k.LETTERS[min(i, 24)].upper()}, {k.LETTERS[min(i, 24) + 1].upper()}.", f"{k.LETTERS[other].upper()} comes {relation} {k.LETTERS[base].upper()}."


def case(rng):
    """Capital and small letters."""
    word = " ".join(rng.choice(WORD_POOL) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.6:
        question = expand(rng, "[write {w} in capital letters|write {w} in upper case|{w} in capitals|say {w} in capital letters|uppercase {w}]", w=word.lower())
        return question, "All letters become capitals.", word.upper()
    question = expand(rng, "[write {w} in small letters|write {w} in lower case|{w} in small letters|lowercase {w}]", w=word.upper())
    return question, "All letters become small.", word.lower()


def today(rng, date):
    """The date of the system message."""
    year, month, day = map(int, date.split("-"))
    name = k.MONTHS[month - 1]
    draw = rng.random()
    if draw < 0.6:
        question = expand(rng, "[what is the date today|what is today's date|which date is today|what day is it today|what's the date|tell me the date|what is the current "
                          "date|do you know what day it is|date please]")
        return question, f"The current date is {date}.", f"Today is {day} {name} {year}."
    if draw < 0.8:
        return expand(rng, "[what year is it|which year is it|what is the current year|tell me the year]"), f"The current date is {date}.", f"It is the year {year}."
    return expand(rng, "[which month is it|what month is it|what is the current month]"), f"The current date is {date}, month {month}.", f"It is {name}."


SORRY = ["I am sorry, I do not know that. I am only a very small model.", "I am sorry, that is more than I know. I am a very small model.",
         "I do not know that. I am a small demo model, and I know only simple things."]
# Subjects that this model was not taught.
BEYOND = ("quantum physics;relativity;bitcoin;chess;football;the stock market;black holes;blockchain;philosophy;democracy;the Roman Empire;the French Revolution;"
          "algebra;calculus;chemistry;genetics;evolution;economics;inflation;taxes;opera;jazz;poker;yoga;meditation;Linux;Windows;JavaScript;Java;SQL;Docker;"
          "machine learning;neural networks;cryptography;Shakespeare;Mozart;Napoleon;Einstein;Newton;Cleopatra;the Eiffel Tower;the Great Wall;the pyramids;"
          "the Titanic;the Olympic Games;Hollywood;cricket rules;the moon landing;the second world war;the Middle Ages;the Vikings;ancient Rome;ancient Greece;"
          "vitamins;viruses;bacteria;cancer;medicine;law;insurance;mortgages;marketing;logic;grammar;linguistics;psychology;astronomy;geology;nuclear energy;"
          "solar panels;electric cars;rockets;satellites;robots;drones;video games;movies;television;newspapers;politics;religion;the universe;time travel;"
          "attention sinks;transformers;kernels;operating systems;compilers;databases;the weather on Mars;Antarctica's ice;sourdough;sushi;pizza;wine").split(";")


def unknown(rng):
    """Questions beyond this model, and a plain answer."""
    if rng.random() < 0.5:
        question = expand(rng, "[what is {b}|explain {b}|tell me about {b}|how does {b} work|who invented {b}|can you explain {b} to me|write an essay about {b}|what do you know about "
                          "{b}|explain {b} in simple terms|give me a summary of {b}|why is {b} important|what is the history of {b}|teach me {b}|what are the rules of {b}|when "
                          "did {b} begin|write a python program about {b}|write a function for {b}|who is {b}]", b=rng.choice(BEYOND))
        return question, "I do not know this, so I should say so.", rng.choice(SORRY)
    word = made_up(rng)
    thing_ = rng.choice(WORD_POOL)
    question = expand(rng, "[who is {W}|what is {w}|where is {W}|tell me about {W}|what does {w} mean|who was {W}|how do I install {w}|how does {art} {w} work|who won the game "
                      "yesterday|who won the election|what is the price of {t}|how much does {a_t} cost|write a program that sorts {w}|write code for {art} {w}|what happened in "
                      "{y}|who invented the {t}|who wrote {W}|when was {W} born|what is the population of {W}|can you book a flight to {W}|what is the latest news|what are the "
                      "news today|who is the president|who is the king|explain quantum {w}|summarise the book {W}|what is the phone number of {W}|how do I fix my {t}|solve the "
                      "equation of {W}|who is the best {w} player|which {w} is the best|what did {W} say|where can I buy {a_t}|write an essay about {w}|prove that {w} is true|how "
                      "far is {W} from here|how tall is {W}|how old is {W}|when does the {t} shop open|recommend a film about {w}|what is the stock price of {W}|debug my "
                      "{w} program|what is {w} in physics|how do I invest in {w}]",
                      w=word, W=sentence(word), t=thing_, a_t=article(thing_), art="an" if word[0] in "aeiou" else "a", y=rng.randint(1000, 2025))
    return question, "I do not know this, so I should say so.", rng.choice(SORRY)


def word_list(rng):
    """The last thing in a list, the first, how many."""
    things = rng.sample([w for w in WORD_POOL if w.islower()], rng.randint(2, 6))
    shown = join(things)
    draw = rng.random()
    if draw < 0.4:
        which, pick = rng.choice([("first", things[0]), ("last", things[-1])])
        question = expand(rng, "[what is the {w} word of this list: {s}|which word comes {w}: {s}|{s}: what is the {w} word]", w=which, s=shown)
        return question, f"The list is {shown}.", f"The {which} word is \"{pick}\"."
    if draw < 0.7:
        question = expand(rng, "[how many words are in this list: {s}|how many things are these: {s}|count these words: {s}]", s=shown)
        counted = ", ".join(f"{w} {i + 1}" for i, w in enumerate(things))
        return question, counted + ".", f"There are {number_word(len(things))} words in the list."
    question = expand(rng, "[sort these words: {s}|put these words in alphabetical order: {s}|sort by the alphabet: {s}]", s=shown)
    return question, "In the order of the alphabet.", join(sorted(things)) + "."
