"""Plain prose from a grammar: stories, descriptions, dialogues, diary pages and letters."""

import knowledge as k
from grammar import article, expand, join, number_word, sentence

EXTRA_HEROES = ("robot dragon king queen prince princess knight pirate teacher farmer baker sailor wizard witch giant "
                "dwarf fairy ghost snowman toy doll scarecrow shepherd gardener painter cook fisherman old man old woman "
                "little boy little girl train boat star cloud tree flower river stone").replace("old man", "old_man") \
    .replace("old woman", "old_woman").replace("little boy", "little_boy").replace("little girl", "little_girl").split()
HEROES = [a[0] for a in k.ANIMALS] + ["cheetah", "panda", "hen", "robin", "donkey", "beaver", "mole", "badger"] + \
    [hero.replace("_", " ") for hero in EXTRA_HEROES]
SHE = {"queen", "princess", "witch", "fairy", "old woman", "little girl", "doll", "hen", "cow"}
HE = {"king", "prince", "knight", "pirate", "wizard", "old man", "little boy", "fisherman", "snowman", "giant", "dwarf",
      "shepherd"}

TRAITS = "[small|young|little|clever|kind|shy|brave|lazy|curious|proud|lonely|friendly|quiet|cheerful|careful|merry]"
PLACES = ("[in a deep forest|near a wide river|in a small village|on a green hill|by the sea|at the edge of a large wood|"
          "in an old garden|on a quiet farm|in a valley between two mountains|beside a blue lake|under a tall oak tree|"
          "in a little house with a red roof|on a small island|not far from a busy town]")
TIMES = "[One day|One morning|One evening|One sunny day|One cold day|One rainy afternoon|Early one morning|One spring day]"
ENDINGS = ("[From that day on, they were good friends.|From then on, the two met every day.|And they were happy ever after.|"
           "And if you listen well, you can still hear them laugh.|That night, {hero_the} slept very well.|"
           "It was the best day of {his} life.|And {hero_the} never forgot that day.|They lived happily for many years.]")
OPENINGS = ("[Once upon a time, there was {hero_a} who lived {place}.|There once was {hero_a} who lived {place}.|"
            "Long ago, {hero_a} lived {place}.|{place_s}, there lived {hero_a}.|A long time ago, there was {hero_a}. "
            "{He} lived {place}.|Once there was {hero_a}. {He} lived {place} with {his} [family|mother|two brothers|friends|old "
            "grandmother].]")

# Each plot: a list of paragraphs' parts; the slots are filled once per story so that it stays consistent.
PLOTS = [
    # a lost thing
    "{opening} {He} had a [little|shiny|lovely|beautiful] {thing} that {he} loved more than anything else. {time}, the "
    "{thing} was gone. {Hero_the} looked [under the bed|behind the door|in the grass] and [in the kitchen|under the "
    "stairs|behind the trees], but {he} could not find it. {He} sat down and began to cry.\n\nThen {friend_a} came by. "
    "\"Why are you crying?\" asked {friend_the}. \"I have lost my {thing},\" said {hero_the}. \"[Do not worry|Do not be "
    "sad|Dry your tears],\" said {friend_the}. \"[We will look for it together|Two can find more than one|I will help "
    "you].\"\n\nThey looked [all day|for a long time|until the sun went down]. At last {friend_the} [called|cried|shouted], "
    "\"Here it is!\" The {thing} was [under a big leaf|behind a stone|in an old box|on top of a wall|in a bird's nest]. "
    "{Hero_the} was so happy that {he} [danced|laughed|jumped up and down]. \"Thank you,\" {he} said. \"You are a real "
    "friend.\" {ending}",
    # a fear overcome
    "{opening} {Hero_the} was afraid of [the dark|the water|loud noises|thunder|high places|the big forest]. [The others "
    "laughed at {him}|Nobody knew about it|It made {him} sad], [but|and] {he} [did not know what to do|often stayed at home "
    "alone|wanted to be brave].\n\n{time}, {hero_the} heard a cry. It was {friend_a} that had fallen into [a deep hole|the "
    "river|a ditch]. \"Help!\" cried {friend_the}. \"Please help me!\" {Hero_the} was [very|so] afraid, and {his} heart beat "
    "fast. But {he} [took a deep breath|thought of {friend_the}|closed {his} eyes for a moment] and [ran|hurried] to "
    "help. {He} found a long [branch|rope|stick] and pulled {friend_the} out.\n\n\"You are very brave,\" said {friend_the}. "
    "\"No,\" said {hero_the}, \"I was afraid all the time.\" \"That is what brave means,\" said {friend_the}. \"You were "
    "afraid, and you helped me all the same.\" {ending}",
    # sharing food
    "{opening} {time}, {he} found [a big|a whole|a basket with a] {food}. \"[What luck|How wonderful|Hurrah]!\" said "
    "{hero_the}. \"I will eat it all by myself.\" But then {friend_a} came along the path. {Friend_the} looked [thin|tired|"
    "cold|hungry|weak] and had eaten nothing [all day|for two days|since yesterday].\n\n{Hero_the} thought for a while. "
    "Then {he} [broke|cut] the {food} into two pieces and gave one of them to {friend_the}. \"Here,\" said {hero_the}. "
    "\"It tastes better when you eat it with a friend.\" And it was true. They ate, they talked and they laughed [until the "
    "moon came out|until it was dark|for a long time].\n\nWhen winter came, {hero_the} had nothing left to eat. [There was a "
    "knock at the door|Somebody came through the snow|Then {he} heard a voice]. It was {friend_the}, with a bag full of "
    "food. \"You shared with me,\" said {friend_the}, \"and now I share with you.\" {ending}",
    # a journey
    "{opening} {Hero_the} had always wanted to see [the sea|the top of the mountain|the big city|the end of the river|the "
    "snow|the place where the sun goes down]. {time}, {he} packed a bag with [some bread|two apples|a piece of cheese] and "
    "[a warm coat|a blanket|a bottle of water], and set off.\n\nOn the way {he} met {friend_a}. \"Where are you going?\" "
    "asked {friend_the}. \"[Far away|Over the hills|Where the road ends],\" said {hero_the}. \"Do you want to come with "
    "me?\" So they went on together. They [crossed a bridge|walked through a dark wood|climbed over a wall] and [slept under "
    "the stars|sang songs|told each other stories].\n\nAfter {days} days they came to the place. It was [more beautiful|much "
    "bigger|quieter] than {hero_the} had ever thought. \"Now I know,\" said {hero_the}, \"that the way was the best part, "
    "because you were with me.\" [Then they went home|In the evening they turned back] with [many stories|happy hearts|tired "
    "feet]. {ending}",
    # a contest
    "{opening} {Hero_the} could [run|swim|sing|jump|climb] better than all the others, and {he} talked about it all day. "
    "\"I am the best,\" {he} said. \"Nobody can beat me.\" {time}, {friend_a} said, \"I will try it.\" Everybody laughed, "
    "for {friend_the} was [small|slow|old|not very strong].\n\nThe next day they all came to watch. {Hero_the} was [far "
    "ahead|much faster|sure to win], so {he} [lay down in the shade|stopped to rest|took a little nap|stopped to eat some "
    "{food}]. But {friend_the} went on and on and did not stop. When {hero_the} [woke up|looked up again|stood up], it was "
    "too late. {Friend_the} had won.\n\n\"How did you do it?\" asked {hero_the}. \"I just went on,\" said {friend_the}. "
    "{Hero_the} [learned something that day|thought about it for a long time|never laughed at the others again]. It is "
    "better to go on slowly than to stop too early. {ending}",
    # planting
    "{opening} {time}, {he} found a [small|tiny|round|brown] seed on the path. \"What will it be?\" {he} asked. {He} put "
    "it into the ground and gave it water every day. The others laughed. \"Nothing will grow there,\" said {friend_a}.\n\n"
    "{Hero_the} waited. One week went by, and then another. At last a little green leaf came out of the ground. It grew and "
    "grew. In [spring|summer] it was as high as the house, and in autumn it was full of [red apples|sweet pears|golden "
    "plums|ripe cherries].\n\n{Hero_the} gave some to everybody, even to {friend_the}. \"I was wrong,\" said {friend_the}. "
    "\"How did you know?\" \"I did not know,\" said {hero_the}. \"I only waited.\" {ending}",
    # night and light
    "{opening} Every night {he} looked up at the [stars|moon] and [made a wish|dreamed of flying|sang a song]. [One night|Once|One "
    "winter night], the [sky|forest|path] was so dark that nobody could see a thing. {friend_a_s} was still out in the wood and could not find "
    "the way home.\n\n{Hero_the} took a [lamp|lantern|candle] and went out. \"Hello!\" {he} called. \"Can you see my light?\" "
    "For a long time there was no answer. Then a [quiet|small|thin] voice said, \"Yes, I can see you. I am here.\" It was "
    "{friend_the}. They walked home side by side, and the little light went with them.\n\n\"[Thank you for the light|You "
    "found me],\" said {friend_the}. \"I was so [afraid|cold|alone].\" They drank hot [milk|tea|soup] and [talked|sat by "
    "the fire] until the morning came. {ending}",
    # the new neighbour
    "{opening} {time}, {friend_a} moved into the empty house next door. {Hero_the} wanted to say hello, but {he} was too "
    "shy. So {he} baked a [cake|loaf of bread|pie] and put it in front of the door. Then {he} ran away and hid behind a "
    "[tree|wall|bush].\n\n{Friend_the} opened the door and saw the [present|gift]. \"Who was that?\" asked {friend_the}. "
    "The next morning there was a [basket of nuts|flower|jar of honey|little picture] in front of the door of {hero_the}. And "
    "the day after, there was another present.\n\nIn the end they opened their doors at the same moment. They looked at each "
    "other and began to laugh. \"So it was you,\" they both said. {ending}",
]
STORY_THINGS = "ball hat bell kite key ring book drum coat shoe flute lamp box cup toy".split()
STORY_FOODS = "cake|loaf of bread|cheese|pumpkin|melon|pie|apple|pear".split("|")
FRIENDS = [a[0] for a in k.ANIMALS if a[0] not in ("fish", "shark", "salmon", "whale", "dolphin", "octopus", "kid")] + \
    ["donkey", "beaver", "mole", "badger", "hen", "robin"]
TITLES = "[The {adj} {hero}|The {hero} and the {friend}|A Friend for the {hero}|The Story of the {hero}]"


def story(rng, hero=None, name=None, titled=False):
    """A short story. `hero` is a noun; `name` makes the hero a child or a named animal."""
    kind = hero or rng.choice(HEROES)
    friend = rng.choice([f for f in FRIENDS if f != kind])
    if name is None and kind in ("little boy", "little girl") and rng.random() < 0.5:
        name = rng.choice(k.GIRLS if kind == "little girl" else k.BOYS)
    he = "she" if kind in SHE or name in k.GIRLS else "he" if kind in HE or name in k.BOYS else \
        rng.choice(["it", "he", "she"]) if hero is None and name is None and rng.random() < 0.3 else "it"
    trait = expand(rng, TRAITS)
    noun = kind if kind.startswith(("little", "old", "young")) else f"{trait} {kind}"
    the = name or f"the {kind}"
    forms = {"he": ("he", "him", "his"), "she": ("she", "her", "her"), "it": ("it", "it", "its")}[he]
    place = expand(rng, PLACES)
    slots = {
        "hero_a": article(noun) + (f" called {name}" if name else ""), "hero_the": the, "Hero_the": sentence(the),
        "friend_a": article(friend), "friend_a_s": sentence(article(friend)), "friend_the": f"the {friend}",
        "Friend_the": f"The {friend}", "he": forms[0], "He": sentence(forms[0]), "him": forms[1], "his": forms[2],
        "thing": rng.choice(STORY_THINGS), "food": rng.choice(STORY_FOODS), "days": number_word(rng.randint(2, 9)),
        "time": expand(rng, TIMES), "place": place, "place_s": sentence(place),
    }
    slots["opening"] = expand(rng, OPENINGS, **slots)
    slots["ending"] = expand(rng, ENDINGS, **slots)
    text = expand(rng, rng.choice(PLOTS), **slots)
    if titled:
        title = expand(rng, TITLES, adj=trait.title(), hero=kind.title(), friend=friend.title())
        text = f"{title}\n\n{text}"
    return text


def short_story(rng, hero):
    """A story of a few sentences."""
    return expand(rng, "[Once there was|There was once] {hero_a} who wanted to {wish}. [Everybody laughed|The others said that "
                  "it was too hard|Nobody thought that it could be done], but the {hero} tried [every day|again and again]. "
                  "{time}, [a {friend} came to help|it found a {friend} who could help], and together they did it. The {hero} "
                  "was [very|so] happy, and the {friend} was [happy|proud] too.",
                  hero=hero, hero_a=article(expand(rng, TRAITS) + " " + hero), time=expand(rng, TIMES),
                  friend=rng.choice(FRIENDS),
                  wish=rng.choice(["learn to dance", "see the sea", "build a house", "climb a mountain", "sing a song",
                                   "fly a kite", "bake a cake", "find a friend", "touch the moon", "read a book"]))


def animal_text(rng):
    """A paragraph about one animal."""
    name, plural, kind, legs, sound, home, food, colour, young, size, fact = rng.choice(k.ANIMALS)
    parts = [f"{sentence(article(name))} is {article(kind)}.", f"{sentence(plural)} live {home}.",
             f"They eat {food}.", f"A young {name} is called {article(young)}.", fact]
    if colour != "many colours":
        parts.append(f"Most {plural} are {colour}.")
    else:
        parts.append(f"{sentence(plural)} come in many colours.")
    parts.append(f"{sentence(article(name))} has {number_word(int(legs))} legs." if int(legs) else
                 f"{sentence(plural)} have no legs.")
    rest = parts[1:]
    rng.shuffle(rest)
    return " ".join([parts[0]] + rest[: rng.randint(3, len(rest))])


def country_text(rng):
    """A paragraph about one country."""
    country, capital, continent, language = rng.choice(k.COUNTRIES)
    return expand(rng, "[{Country} is a country in {continent}.|{Country} lies in {continent}.] [Its capital is {capital}.|"
                  "The capital of {country} is {capital}.|The capital city is {capital}.] [Many people there speak "
                  "{language}.|The main language is {language}.|People in {country} speak {language}.]",
                  Country=sentence(country), country=country, continent=continent, capital=capital, language=language)


def thing_text(rng):
    """A paragraph about a few things of everyday life."""
    chosen = rng.sample(k.THINGS, rng.randint(2, 4))
    out = []
    for name, what, colour, use in chosen:
        lead = name if name in MASS else article(name)
        text = f"{sentence(lead)} is {what}."
        if colour not in ("many colours", "clear") and rng.random() < 0.6:
            text += f" Its colour is {colour}."
        if use and rng.random() < 0.7:
            text += f" It is good for {use}."
        out.append(text)
    return " ".join(out)


MASS = {"bread", "cheese", "milk", "honey", "chocolate", "rice", "salt", "sugar", "tea", "coffee", "paper", "soap", "grass"}

DIARY = (
    "[Today was|It was] [a good day|a long day|a quiet day|a busy day|a strange day]. [In the morning|After breakfast|Early in the "
    "morning] I [went to the market|walked to the park|took the bus to work|worked in the garden|cleaned the house] [and bought "
    "some {fruit}|with my friend {name}|because the weather was fine|although it rained]. [At noon|Around midday] I [had soup and "
    "bread|ate a sandwich|cooked rice with vegetables|met {name2} for lunch]. [In the afternoon|Later] [I read a book about "
    "{animals}|I wrote a letter to {name2}|we played football|I took a nap|I saw {animal_a} near the river]. [It made me "
    "happy.|I liked that very much.|That was fun.|I want to do that again.] [In the evening|At night] I [watched the stars|"
    "listened to music|drank a cup of tea|talked to {name}] and [went to bed early|fell asleep quickly|thought about the day].")
LETTER = (
    "Dear {name},\n\n[thank you for your letter|how are you|I hope that you are well|I have not written for a long time]. [Here it "
    "is|The weather here is] [warm and sunny|cold and wet|windy|very nice]. [Last week|Yesterday|On {day}] I [visited my "
    "grandmother|went to the sea|started a new job|planted a tree|saw {animal_a}] and [it was wonderful|I thought of you|I wanted "
    "to tell you about it]. [My sister|My brother|My mother|My neighbour] has [a new {thing}|bought a {thing}|found {animal_a}].\n\n"
    "[Please come and visit us|I would like to see you again|Write to me soon|Tell me how you are] [in {month}|when you have time|"
    "before the winter].\n\n[Yours|Best wishes|With love|Many greetings],\n{name2}")
DIALOGUE = [
    "\"Good morning, {name},\" said {name2}. \"[How are you today|How do you feel today|Did you sleep well]?\" \"[Very well, thank "
    "you|Very well|Not so well, I am a little tired],\" [said|answered] {name}. \"[I am going to the market|I want to buy some "
    "{fruit}|I am looking for my {thing}].\" \"[Can I come with you|May I help you|Shall we go together]?\" asked {name2}. \"[Of course|Yes, "
    "please|That would be nice],\" said {name}, and [off they went|they walked down the street together|they both smiled].",
    "\"What is that?\" asked {name}. \"That is {animal_a},\" said {name2}. \"[It lives here|I see it every day|Look how it moves].\" "
    "\"[Is it dangerous|Can I touch it|What does it eat]?\" \"[I do not think so|Ask the teacher|Let us find out],\" [said|answered] "
    "{name2}. They [stood very still|watched it for a long time|sat down in the grass] until it [went away|was gone|disappeared].",
    "\"I cannot do it,\" said {name}. \"[It is too hard|I am not good enough|I have tried it {n} times].\" \"Try it once more,\" said "
    "{name2}. \"[I will help you|Take your time|You can do more than you think].\" So {name} tried again, and [this time it "
    "worked|it was not so hard at all|after a while it went well]. \"You see?\" said {name2}, and they both laughed.",
]
SCENE = (
    "[The sun was shining|It was raining|The snow was falling|A cold wind blew|The moon was bright|The sky was grey] and the [street|"
    "garden|park|market|harbour|village] was [quiet|full of people|empty|wet|busy]. {animal_a_s} [sat on a wall|ran across the "
    "grass|looked out of a window|hid under a bench]. [A woman|An old man|A young girl|A boy|A tall man] [walked by with|was carrying|"
    "was looking at|held] a [red|blue|green|yellow|white|brown] {thing}. [Somewhere a bell rang|Far away a dog barked|Somebody laughed|"
    "A door opened|Music came from a house], and [everything was as it should be|the day went on|nobody was in a hurry|it smelled of "
    "fresh bread|the evening began].")


def everyday_text(rng):
    """A diary page, a letter, a dialogue or a scene."""
    names = rng.sample(k.GIRLS + k.BOYS, 2)
    animal = rng.choice(k.ANIMALS)
    fruit = {"cherry": "cherries", "strawberry": "strawberries", "peach": "peaches", "mango": "mangoes"}
    one = rng.choice(k.LISTS["fruits"])
    template = rng.choice([DIARY, LETTER, SCENE] + DIALOGUE)
    return expand(rng, template, name=names[0], name2=names[1], animal_a=article(animal[0]), animals=animal[1],
                  animal_a_s=sentence(article(animal[0])), fruit=fruit.get(one, one + "s"),
                  thing=rng.choice(STORY_THINGS), day=rng.choice(k.DAYS), month=rng.choice(k.MONTHS),
                  n=number_word(rng.randint(3, 9)))


def prose(rng):
    """One plain document."""
    draw = rng.random()
    if draw < 0.55:
        return story(rng, titled=rng.random() < 0.2)
    if draw < 0.65:
        return animal_text(rng)
    if draw < 0.70:
        return country_text(rng)
    if draw < 0.77:
        return thing_text(rng)
    return everyday_text(rng)
