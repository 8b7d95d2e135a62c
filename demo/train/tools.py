"""Function tools for tool-call conversations: made-up declarations, questions, arguments, results and answers."""

import json

import knowledge as k
from grammar import expand, sentence
from tasks import WORD_POOL, made_up


def place(rng):
    """A city, sometimes one that nobody has seen."""
    return sentence(made_up(rng)) if rng.random() < 0.25 else rng.choice(k.COUNTRIES)[1]


def _weather(rng):
    city, degrees = place(rng), rng.randint(-10, 38)
    sky = rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear"])
    param = rng.choice(["city", "city", "city", "location", "location", "place", "town"])
    name = rng.choice(["get_weather", "get_weather", "get_current_weather", "weather", "current_weather", "fetch_weather"])
    question = expand(rng, "[what is the weather in {c}|what's the weather like in {c}|how is the weather in {c}|weather in {c}|is it cold in {c}|is it warm in {c}|tell me the weather "
                      "in {c}|will it rain in {c}|what is the temperature in {c}|how warm is it in {c}|weather in {c} today|do I need an umbrella in {c}]", c=city)
    if rng.random() < 0.5:
        result, answer = f"{degrees} degrees", f"It is {degrees} degrees in {city}."
    elif rng.random() < 0.5:
        result, answer = f"{degrees} degrees and {sky}", f"It is {degrees} degrees and {sky} in {city}."
    else:
        result = json.dumps({"temperature": degrees, "sky": sky})
        answer = f"It is {degrees} degrees and {sky} in {city}."
    return name, rng.choice(["Get weather.", "Get the weather of a city.", "Gets the current weather.", "Get the current weather in a given location", ""]), \
        [(param, "string")], question, {param: city}, result, answer


def _time(rng):
    city, clock = place(rng), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    param = rng.choice(["city", "place", "timezone", "location"])
    question = expand(rng, "[what time is it in {c}|what's the time in {c}|how late is it in {c}|current time in {c}|tell me the time in {c}]", c=city)
    return rng.choice(["get_time", "current_time", "clock", "get_local_time"]), rng.choice(["Get the time.", "Gets the local time of a place."]), \
        [(param, "string")], question, {param: city}, clock, f"It is {clock} in {city}."


def _search(rng):
    words = " ".join(rng.choice(WORD_POOL).lower() for _ in range(rng.randint(1, 3)))
    found = f"{rng.randint(2, 90)} results"
    param = rng.choice(["query", "text", "q"])
    question = expand(rng, "[search for {w}|search the web for {w}|please search for {w}|look up {w}|find {w} on the web]", w=words)
    return rng.choice(["search", "web_search", "find", "lookup"]), rng.choice(["Search the web.", "Looks up a text."]), [(param, "string")], question, \
        {param: words}, found, f"I found {found} for \"{words}\"."


def _timer(rng):
    minutes = rng.randint(1, 60)
    question = expand(rng, "[set a timer for {m} minutes|start a timer of {m} minutes|wake me up in {m} minutes|please set a timer for {m} minutes]", m=minutes)
    return rng.choice(["set_timer", "start_timer"]), rng.choice(["Set a timer.", "Starts a timer."]), [("minutes", rng.choice(["integer", "number"]))], question, \
        {"minutes": minutes}, rng.choice(["ok", "done", "{\"status\": \"ok\"}"]), f"The timer is set for {minutes} minutes."


def _message(rng):
    name = rng.choice(k.GIRLS + k.BOYS)
    text = rng.choice(["hello", "I am late", "see you soon", "good night", "dinner is ready", "happy birthday", "thank you"])
    question = expand(rng, "[send a message to {n}: {t}|write to {n}: {t}|tell {n}: {t}|message {n}: {t}]", n=name, t=text)
    return "send_message", rng.choice(["Send a message.", "Sends a text to a person."]), [("to", "string"), ("text", "string")], question, \
        {"to": name, "text": text}, rng.choice(["sent", "ok"]), f"I have sent the message to {name}."


def _add(rng):
    a, b = rng.randint(0, 999), rng.randint(0, 999)
    question = expand(rng, "[what is {a} plus {b}|add {a} and {b}|{a} + {b}|how much is {a} + {b}]", a=a, b=b)
    return rng.choice(["add", "add_numbers", "sum"]), rng.choice(["Add two numbers.", "Adds numbers."]), [("a", rng.choice(["integer", "number"])), ("b", "number")], question, \
        {"a": a, "b": b}, str(a + b), f"{a} plus {b} is {a + b}."


def _location(rng):
    city = place(rng)
    question = rng.choice(["where am I", "what is my location", "in which city am I", "find my location"])
    return rng.choice(["get_location", "locate", "where_am_i"]), rng.choice(["Gets the location.", "Get the location of the user."]), [], question, {}, city, f"You are in {city}."


def _any(rng):
    """A lookup by an unseen name, so that names are read and not remembered."""
    what, param, value = rng.choice(WORD_POOL).lower(), rng.choice(["name", "id", "key", "code", "item"]), made_up(rng)
    result = str(rng.randint(1, 500))
    question = expand(rng, "[what is the {w} of {v}|get the {w} of {v}|find the {w} of {v}|tell me the {w} of {v}]", w=what, v=value)
    return rng.choice(["get_", "find_", "read_", "load_"]) + what, f"Get the {what}.", [(param, "string")], question, {param: value}, result, \
        f"The {what} of {value} is {result}."


KINDS = [_weather, _weather, _weather, _time, _search, _timer, _message, _add, _location, _any, _any]


def declaration(rng, name, text, params):
    """One function in the notation of the developer message."""
    head = f"// {text}\n" if text else ""
    if not params:
        return head + f"type {name} = " + rng.choice(["() => any;", "(_: {\n}) => any;"])
    lines = []
    for param, kind in params:
        if rng.random() < 0.25:
            lines.append(f"// The {param}.")
        lines.append(f"{param}: {'number' if kind == 'integer' else kind},")
    if params[0][1] == "string" and rng.random() < 0.15:
        lines.append(rng.choice(["unit?: \"celsius\" | \"fahrenheit\",", "limit?: number,", "language?: string,"]))
    return head + f"type {name} = (_: {{\n" + "\n".join(lines) + "\n}) => any;"


def case(rng):
    """A tool conversation: `(tools block, function name, question, arguments as JSON, result, answer)`."""
    picked = rng.choice(KINDS)(rng)
    name, text, params, question, arguments, result, answer = picked
    declared = [declaration(rng, name, text, params)]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        other = rng.choice(KINDS)(rng)
        if other[0] != name and not any(other[0] in d for d in declared):
            declared.insert(rng.randint(0, len(declared)), declaration(rng, *other[:3]))
    block = "# Tools\n\n## functions\n\nnamespace functions {\n\n" + "\n\n".join(declared) + "\n\n} // namespace functions"
    return block, name, question, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")), result, answer
