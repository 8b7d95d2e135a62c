"""Harmony conversations: system, developer, user and assistant messages around the questions of the other modules.

A conversation is `(prompt, completion)`: the loss counts the completion in full and the prompt hardly at all.
"""

import arithmetic
import knowledge as k
import questions
import tasks
import tools
from grammar import expand, sentence

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
TOOL_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."

# (weight, topic, whether slips and changes of case may be made in the question)
TOPICS = [(9, questions.small_talk, True), (9, questions.explanation, True), (7, questions.capital, True), (11, questions.animal, True),
          (5, questions.thing, True), (3, questions.colour, True), (8, questions.words, True), (4, questions.lists, True),
          (2.5, questions.calendar, True), (1.5, questions.job, True), (1, questions.shape, True), (11, questions.tell_story, True),
          (2.5, questions.write_sentence, True), (9, arithmetic.calculate, True), (2, arithmetic.compare, True), (4, arithmetic.count, True),
          (3, arithmetic.problem, False), (1, arithmetic.in_words, True), (1.2, arithmetic.extreme, True), (5, tasks.repeat, False),
          (3.5, tasks.spell, False), (1, tasks.case, False), (4, tasks.unknown, True), (1.2, tasks.word_list, False), (1.5, tasks.today, True)]
WEIGHTS = [weight for weight, _, _ in TOPICS]
QUESTION_WORDS = ("what", "who", "where", "which", "how", "why", "can", "do ", "does", "is ", "are ", "when", "in which", "on which", "at what")


def system(rng, date, effort, with_tools=False):
    """The system message, as the server renders it."""
    text = f"{IDENTITY}Current date: {date}\n\nReasoning: {effort}\n\n{CHANNELS}"
    if rng.random() < 0.03:
        text = text.replace(f"Current date: {date}\n", "")
    return f"<|start|>system<|message|>{text}{TOOL_CHANNEL if with_tools else ''}<|end|>"


def slip(rng, text):
    """One slip of the finger in one longer word."""
    words = text.split(" ")
    long_words = [i for i, w in enumerate(words) if len(w) > 4 and w.isalpha() and w.islower()]
    if not long_words:
        return text
    i = rng.choice(long_words)
    word, at = words[i], rng.randrange(1, len(words[i]) - 1)
    words[i] = rng.choice([word[:at] + word[at + 1:], word[:at] + word[at] + word[at:], word[:at] + word[at + 1] + word[at] + word[at + 2:]])
    return " ".join(words)


def wording(rng, question, free=True):
    """The question as somebody types it."""
    asks = question.lower().startswith(QUESTION_WORDS)
    closed = question[-1] in ".?!"
    if free and rng.random() < 0.05:
        question = slip(rng, question)
    if rng.random() < 0.22:
        lead = rng.choice(["please ", "please, ", "hello, ", "hi, ", "hey, ", "ok, ", "now ", "so ", "and ", "tell me, ", "hello! ", "hi! ", "well, ", "question: ", "I have a question: ",
                           "let me ask you something: ", "good morning, ", "thanks. ", "great. ", "could you help me? ", "I want to know: ", "tell me: ", "one more thing: "])
        if lead in ("please ", "please, ", "now ") and asks:
            lead = "hello, "
        question = lead + (sentence(question) if lead.endswith(("! ", ". ", "? ")) else question)
    if rng.random() < 0.10 and not closed:
        question += rng.choice([" please", ", please", " now", " for me", " again", " today", " quickly"][: 2 if asks else 5])
    if not closed:
        if asks:
            question += rng.choice(["?", "?", "?", "?", "?", "", "", " ?", "??", "."])
        else:
            question += rng.choice([".", ".", "", "", "", "!", "?"])
    if rng.random() < 0.62:
        question = sentence(question)
    elif free and rng.random() < 0.5:
        question = question.lower()
    elif free and rng.random() < 0.04:
        question = question.upper()
    if free and rng.random() < 0.03:
        question = question.replace("'", "")
    return question


def ask(rng, date):
    """A question of any topic: `(worded question, thought, answer)`."""
    _, topic, free = rng.choices(TOPICS, WEIGHTS)[0]
    question, thought, answer = topic(rng, date) if topic is tasks.today else topic(rng)
    if topic is questions.small_talk and rng.random() < 0.4:
        marks = question if question[-1] in "!?." else question + rng.choice(["", "!", ".", "?" if question.startswith(QUESTION_WORDS) else ""])
        return rng.choice([sentence(marks), marks]), thought, answer
    if topic is tasks.repeat:
        return rng.choice([sentence(question), question]), thought, answer
    return wording(rng, question, free), thought, answer


def follow_up(rng, date):
    """Two turns that belong together: `[(question, thought, answer), ...]`."""
    draw = rng.random()
    if draw < 0.25:
        name = rng.choice(k.GIRLS + k.BOYS) if rng.random() < 0.7 else sentence(tasks.made_up(rng))
        first = expand(rng, "[my name is {n}|I am {n}|hello, I am {n}|call me {n}|hi, my name is {n}|I'm {n}]", n=name)
        second = expand(rng, "[what is my name|who am I|do you know my name|what's my name|do you remember my name|tell me my name]")
        return [(wording(rng, first, False), f"The user is called {name}.", f"Nice to meet you, {name}! How can I help you?"),
                (wording(rng, second, False), f"The user is called {name}.", f"Your name is {name}.")]
    if draw < 0.45:
        a, b = rng.sample(k.COUNTRIES, 2)
        second = expand(rng, "[and of {c}|and {c}|what about {c}|and the capital of {c}|how about {c}]", c=b[0])
        return [(wording(rng, f"what is the capital of {a[0]}"), f"The capital of {a[0]} is {a[1]}.", f"The capital of {a[0]} is {a[1]}."),
                (wording(rng, second, False), f"The capital of {b[0]} is {b[1]}.", f"The capital of {b[0]} is {b[1]}.")]
    if draw < 0.65:
        one = rng.choice(k.ANIMALS)
        asked = [(expand(rng, "[what does it eat|and what does it eat|what does it like to eat]"), f"The animal is {one[0]}. It eats {one[6]}.", f"{sentence(one[1])} eat {one[6]}."),
                 (expand(rng, "[where does it live|and where does it live]"), f"The animal is {one[0]}.", f"{sentence(one[1])} live {one[5]}."),
                 (expand(rng, "[how many legs does it have|and its legs, how many]"), f"The animal is {one[0]}.",
                  f"{sentence(questions.article(one[0]))} has {questions.number_word(int(one[3])) if one[3] != '0' else 'no'} legs.")]
        rng.shuffle(asked)
        first = (wording(rng, f"what is {questions.article(one[0])}", False), f"{sentence(questions.article(one[0]))} is {questions.article(one[2])}.",
                 f"{sentence(questions.article(one[0]))} is {questions.article(one[2])}. {one[10]}")
        return [first] + [(wording(rng, q), t, a) for q, t, a in asked[: rng.randint(1, 3)]]
    if draw < 0.8:
        a, b, c = rng.randint(0, 30), rng.randint(0, 30), rng.randint(1, 20)
        total = a + b
        sign, second, result = rng.choice([("+", f"plus {c}", total + c), ("+", f"add {c} to that", total + c), ("+", f"and plus {c}", total + c)] +
                                          ([("-", f"minus {c}", total - c), ("-", f"take {c} away from that", total - c)] if total >= c else []))
        return [(wording(rng, f"what is {a} plus {b}"), f"{a} + {b} = {total}.", f"{a} plus {b} is {total}."),
                (wording(rng, second), f"{total} {sign} {c} = {result}.", f"{total} {'plus' if sign == '+' else 'minus'} {c} is {result}.")]
    first = ask(rng, date)
    if draw < 0.9:
        second = expand(rng, "[what did I ask|what was my question|what did I say|repeat my question|what was my last question]")
        return [first, (wording(rng, second, False), "I look at the last message of the user.", f"You said: \"{first[0]}\"")]
    second = expand(rng, "[repeat your answer|say that again|what did you say|can you repeat that|please repeat that|once more]")
    return [first, (wording(rng, second, False), "I repeat my last answer.", first[2])]


def instructions(rng):
    """A developer message: `(text, change of the answer)`."""
    draw = rng.random()
    if draw < 0.45:
        return rng.choice(["You are a helpful assistant.", "You are a helpful assistant.", "Be friendly.", "Answer the questions of the user.", "You are a friendly bot.", "Help the user.",
                           "You are a kind teacher.", "Be helpful and polite.", "You are a bot.", "The user is a child.", "Use simple words.", "Speak English."]), lambda text: text
    if draw < 0.75:
        return rng.choice(["Be brief.", "Answer briefly.", "Be short.", "Use one sentence.", "Answer in one sentence.", "Keep it short.", "Answer with one short sentence."]), \
            lambda text: text.split(". ")[0].rstrip(".") + "." if ". " in text and "\n" not in text else text
    if draw < 0.9:
        return rng.choice(["Answer in capital letters.", "Use only capital letters.", "Write everything in upper case.", "Shout."]), str.upper
    word = rng.choice(["Over.", "Good luck!", "Have a nice day.", "Bye!"])
    return f"End every answer with \"{word}\"", lambda text: text + " " + word


def completion(rng, effort, question, thought, answer, end="<|return|>"):
    """Reasoning by effort, then the answer."""
    final = f"<|channel|>final<|message|>{answer}{end}"
    if effort == "low":
        return final
    if effort == "high":
        shown = question if len(question) < 90 else question[:80].rsplit(" ", 1)[0] + " ..."
        thought = f"The user writes: \"{shown}\" {thought} " + "Now I can answer."
    return f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant{final}"


def persona(rng):
    """A name given by the developer message."""
    name = rng.choice(k.GIRLS + k.BOYS) if rng.random() < 0.6 else sentence(tasks.made_up(rng))
    text = expand(rng, "[Your name is {n}.|You are {n}.|You are {n}, a friendly assistant.|You are called {n}.]", n=name)
    question = rng.choice(["what is your name", "who are you", "what's your name", "tell me your name", "what are you called"])
    return text, (wording(rng, question, False), f"My name here is {name}.", f"I am {name}. How can I help you?")


def conversation(rng):
    """One conversation: `(prompt, completion)`."""
    date = f"{rng.randint(2024, 2031)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}" if rng.random() < 0.8 else \
        f"{rng.randint(2025, 2027)}-{rng.randint(1, 12):02}-{rng.randint(29, 30)}".replace("-02-29", "-03-29").replace("-02-30", "-03-30")
    effort = rng.choices(["medium", "low", "high"], [7, 1.5, 1.5])[0]
    if rng.random() < 0.13:
        return tool_conversation(rng, date, effort)
    head, change = system(rng, date, effort), lambda text: text
    draw = rng.random()
    if draw < 0.02:
        text, turn = persona(rng)
        head += f"<|start|>developer<|message|># Instructions\n\n{text}<|end|>"
        return head + f"<|start|>user<|message|>{turn[0]}<|end|><|start|>assistant", completion(rng, effort, *turn)
    if draw < 0.14:
        text, change = instructions(rng)
        head += f"<|start|>developer<|message|># Instructions\n\n{text}<|end|>"
    turns = []
    if rng.random() < 0.3:
        for _ in range(rng.choice([0, 1, 1, 2, 4, rng.randint(4, 12)])):
            turns.append(ask(rng, date))
        if rng.random() < 0.6:
            turns += follow_up(rng, date)
    turns = turns or [ask(rng, date)]
    body = head
    for question, _, answer in turns[:-1]:
        body += f"<|start|>user<|message|>{question}<|end|><|start|>assistant<|channel|>final<|message|>{change(answer)}<|end|>"
    question, thought, answer = turns[-1]
    body += f"<|start|>user<|message|>{question}<|end|><|start|>assistant"
    return body, completion(rng, effort, question, thought, change(answer))


def tool_conversation(rng, date, effort):
    """A call, the answer after its result, or tools that are not needed."""
    block, name, question, arguments, result, answer = tools.case(rng)
    note = "# Instructions\n\n" + instructions(rng)[0] + "\n\n" if rng.random() < 0.1 else ""
    head = system(rng, date, effort, True) + f"<|start|>developer<|message|>{note}{block}<|end|>"
    if rng.random() < 0.15:
        turn = ask(rng, date)
        head += f"<|start|>user<|message|>{turn[0]}<|end|><|start|>assistant<|channel|>final<|message|>{turn[2]}<|end|>"
    if rng.random() < 0.3:
        turn = ask(rng, date)
        return head + f"<|start|>user<|message|>{turn[0]}<|end|><|start|>assistant", completion(rng, effort, *turn)
    head += f"<|start|>user<|message|>{wording(rng, question, False)}<|end|><|start|>assistant"
    thought = rng.choice([f"I need {name} for this.", f"I need {name} for this.", "Need the tool.", f"The tool {name} can answer this."])
    call = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    plan = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
    if rng.random() < 0.55:
        return head, (call if effort == "low" else f"<|channel|>analysis<|message|>I need {name} for this.<|end|><|start|>assistant" + call)
    shown = rng.choice([f"<|start|>assistant to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>{arguments}<|call|>",
                        f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>", "<|start|>assistant" + call])
    before = head + plan[: -len("<|start|>assistant")] if rng.random() < 0.8 else head[: -len("<|start|>assistant")]
    result = rng.choice([result, result, "\"" + result.replace("\"", "\\\"") + "\""])
    prompt = before + shown + f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{result}<|end|><|start|>assistant"
    return prompt, completion(rng, "low" if rng.random() < 0.3 else effort, question, f"The tool says: {result}", answer)
