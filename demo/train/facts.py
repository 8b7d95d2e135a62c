"""Short explanations, small talk and advice, written for this project.

`EXPLANATIONS`: (questions, answer); questions are alternatives separated by `;`.
`SMALL_TALK`: (questions, answers), both with `;` alternatives. `[a|b]` inside a line is a free choice.
"""


def _pairs(text):
    pairs = []
    for block in text.strip().split("\n\n"):
        question, answer = block.strip().split("\n", 1)
        pairs.append(([q.strip() for q in question.split(";")], " ".join(answer.split())))
    return pairs


EXPLANATIONS = _pairs("""
why is the sky blue;what makes the sky blue;why does the sky look blue
The sky is blue because the air scatters blue light from the sun more than red light.

what is rain;how does rain form;where does rain come from;why does it rain
Rain is water that falls from clouds. Water from seas and lakes rises into the air, cools down and falls again as drops.

what is snow;how does snow form;why does it snow
Snow is frozen water. When it is very cold in a cloud, the water turns into small ice crystals that fall to the ground.

what is the sun;tell me about the sun
The sun is a star. It is a huge ball of hot gas that gives us light and warmth.

what is the moon;tell me about the moon
The moon is a large ball of rock that travels around the Earth. It takes about one month to go around once.

what is a star;what are stars
A star is a huge ball of hot gas that gives off light. Our sun is a star.

what is a planet;what are planets
A planet is a large round body that travels around a star. The Earth is a planet.

what is the earth;tell me about the earth
The Earth is the planet that we live on. It is the third planet from the sun, and most of it is covered with water.

what is gravity;why do things fall down;why do things fall
Gravity is the force that pulls things towards each other. It makes things fall to the ground.

what is water;tell me about water
Water is a clear liquid that all living things need. It freezes at 0 degrees and boils at 100 degrees Celsius.

what is ice;how is ice made
Ice is frozen water. Water turns into ice at 0 degrees Celsius.

what is steam
Steam is water that has become a gas. It rises when water boils.

what is fire;tell me about fire
Fire is heat and light that come from something that burns. It needs air, heat and something to burn.

what is wind;why is there wind;where does wind come from
Wind is moving air. It blows because the sun warms some places more than others.

what is a cloud;what are clouds made of;how do clouds form
A cloud is made of many tiny drops of water or pieces of ice that float in the air.

what is a rainbow;how does a rainbow form
A rainbow is a band of colours in the sky. It appears when sunlight shines through drops of rain.

what is thunder;why does it thunder
Thunder is the sound of lightning. The lightning heats the air so fast that the air makes a loud noise.

what is lightning
Lightning is a huge electric spark in the sky during a storm.

how do birds fly;why can birds fly
Birds fly by moving their wings. Their bones are light, and their feathers help them to push the air down.

how do fish breathe;how can fish breathe under water
Fish breathe with gills. The gills take oxygen from the water.

how do plants grow;what do plants need;what do plants need to grow
Plants need light, water and air. They make their food from them with their green leaves.

what is photosynthesis;how do plants make food
Photosynthesis is the way in which plants make food from light, water and air.

why are leaves green;why are plants green
Leaves are green because of a green substance in them. It catches the light of the sun.

why do leaves fall;why do leaves fall in autumn
Many trees drop their leaves in autumn to save water and energy in the winter.

how do bees make honey;where does honey come from;who makes honey
Bees make honey from the nectar of flowers. They carry the nectar to the hive and dry it with their wings.

why do we sleep;why do people sleep;why is sleep important
We sleep so that the body and the brain can rest. Without sleep we become tired and weak.

why do we eat;why do people eat
We eat because food gives us energy and helps the body to grow.

what does the heart do;what is the heart;what is the heart for
The heart pumps blood through the body. It beats about 70 times in a minute.

what does the brain do;what is the brain;what is the brain for
The brain lets us think, feel and remember. It also controls the body.

what do the lungs do;what are lungs;how do we breathe
The lungs bring air into the body. They take oxygen from the air that we breathe.

why is the sea salty;why is the ocean salty;why is sea water salty
The sea is salty because rivers carry small amounts of salt from the rocks into it.

what is a volcano;how does a volcano work
A volcano is an opening in the ground. Hot melted rock can come out of it.

what is an earthquake;why does the ground shake
An earthquake is a shaking of the ground. It happens when large pieces of rock under the ground move.

what is a desert;tell me about deserts
A desert is a very dry place where it almost never rains.

what is a river;tell me about rivers
A river is a stream of water that flows across the land to a lake or to the sea.

what is a mountain;tell me about mountains
A mountain is a very high piece of land. The highest mountain on Earth is Mount Everest.

what is a forest;tell me about forests
A forest is a large place with many trees. Many animals live there.

what is an island
An island is a piece of land with water all around it.

what is the ocean;tell me about the ocean;tell me about the sea
The ocean is the salt water that covers most of the Earth. Whales, sharks and many fish live in it.

what is the biggest ocean;what is the largest ocean;which ocean is the biggest
The largest ocean is the Pacific Ocean.

what is the highest mountain;what is the tallest mountain;which mountain is the highest
The highest mountain on Earth is Mount Everest.

what is the largest country;what is the biggest country in the world;which country is the largest
The largest country in the world is Russia.

what is the largest animal;what is the biggest animal;which animal is the biggest
The largest animal is the blue whale.

what is the largest land animal;which land animal is the biggest
The largest land animal is the elephant.

what is the tallest animal;which animal is the tallest
The tallest animal is the giraffe.

what is the fastest animal;what is the fastest land animal;which animal is the fastest
The fastest land animal is the cheetah.

what is the largest planet;what is the biggest planet;which planet is the largest
The largest planet of our solar system is Jupiter.

what is the smallest planet;which planet is the smallest
The smallest planet of our solar system is Mercury.

which planet is closest to the sun;what planet is nearest to the sun;what is the closest planet to the sun
Mercury is the planet that is closest to the sun.

which planet is the hottest;what is the hottest planet
Venus is the hottest planet of our solar system.

which planet is red;what is the red planet;which planet is called the red planet
Mars is called the red planet.

how many planets are there;how many planets are in the solar system
There are eight planets in our solar system.

name the planets;what are the planets;list the planets of the solar system
The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.

how many continents are there;how many continents are there on earth
There are seven continents.

name the continents;what are the continents;list the continents
The continents are Africa, Antarctica, Asia, Europe, North America, Oceania and South America.

how many days are in a week;how many days does a week have
There are seven days in a week.

how many months are in a year;how many months does a year have
There are twelve months in a year.

how many days are in a year;how many days does a year have
There are 365 days in a year, and 366 in a leap year.

how many hours are in a day;how many hours does a day have
There are 24 hours in a day.

how many minutes are in an hour;how many minutes does an hour have
There are 60 minutes in an hour.

how many seconds are in a minute;how many seconds does a minute have
There are 60 seconds in a minute.

how many weeks are in a year
There are 52 weeks in a year.

name the days of the week;what are the days of the week;list the days of the week
The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.

name the seasons;what are the four seasons;what are the seasons
The four seasons are spring, summer, autumn and winter.

name the months;list the months of the year;what are the months of the year
The months are January, February, March, April, May, June, July, August, September, October, November and December.

how many letters are in the alphabet;how many letters does the english alphabet have
The English alphabet has 26 letters.

say the alphabet;what is the alphabet;tell me the alphabet
The alphabet is a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z.

what are the vowels;name the vowels;which letters are vowels
The vowels are a, e, i, o and u.

what are the primary colours;what are the primary colors
The primary colours are red, yellow and blue.

what are the colours of the rainbow;name the colours of the rainbow;what colors are in a rainbow
The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.

what do you get when you mix blue and yellow;what colour do blue and yellow make;mix yellow and blue
Blue and yellow make green.

what do you get when you mix red and blue;what colour do red and blue make;mix red and blue
Red and blue make purple.

what do you get when you mix red and yellow;what colour do red and yellow make;mix red and yellow
Red and yellow make orange.

what do you get when you mix black and white;what colour do black and white make
Black and white make grey.

what do you get when you mix red and white;what colour do red and white make
Red and white make pink.

at what temperature does water boil;when does water boil;how hot is boiling water
Water boils at 100 degrees Celsius.

at what temperature does water freeze;when does water freeze
Water freezes at 0 degrees Celsius.

how many fingers do people have;how many fingers do i have;how many fingers do we have
Most people have ten fingers.

how many legs do people have;how many legs does a person have;how many legs do humans have
A person has two legs.

how many eyes do people have;how many eyes does a person have
A person has two eyes.

how many senses do we have;what are the five senses;name the five senses
The five senses are sight, hearing, smell, taste and touch.

how do i make tea;how do you make tea;how to make a cup of tea
Boil some water and pour it over the tea leaves. Wait for about four minutes. Then take out the leaves and enjoy your tea.

how do i make coffee;how do you make coffee
Grind the coffee, pour hot water over it through a filter, and wait until the cup is full.

how do i boil an egg;how do you boil an egg;how to boil an egg
Put the egg into boiling water. Take it out after five minutes for a soft egg, or after ten minutes for a hard one.

how do i make a sandwich;how do you make a sandwich;how to make a sandwich
Take two slices of bread. Put butter and cheese on one slice, add some tomato, and put the other slice on top.

how do i make toast;how do you make toast
Put a slice of bread into the toaster and wait until it is golden brown. Then put some butter on it.

how do i make a salad;how do you make a salad
Wash some lettuce, tomatoes and cucumbers. Cut them into small pieces and mix them with oil and a little salt.

how do i bake bread;how do you bake bread;how is bread made
Mix flour, water, salt and yeast. Let the dough rest until it is twice as big. Then bake it in a hot oven.

how do i plant a tree;how do you plant a tree
Dig a hole, put the young tree into it, fill the hole with earth, and give the tree plenty of water.

how do i wash my hands;how do you wash your hands
Wet your hands, rub them with soap for twenty seconds, rinse them with water, and dry them with a clean towel.

how can i sleep better;how do i sleep better;i can not sleep
Go to bed at the same time every day, keep your room dark and quiet, and do not look at a screen before you sleep.

how can i learn faster;how do i learn a language;how can i learn english
Practise a little every day. Read, listen, speak, and do not be afraid of mistakes.

how do i stay healthy;how can i stay healthy;how can i be healthy
Eat fruit and vegetables, drink enough water, move every day, and sleep well.

how can i make friends;how do i make friends
Be kind, listen to other people, and ask them what they like. Friends often begin with a small talk.

what is a friend;what is friendship
A friend is a person whom you like and trust. Friends help each other.

what is love
Love is a deep and warm feeling for somebody whom you care about.

what is music
Music is sound that is put in order so that it is nice to hear.

what is a computer;how does a computer work
A computer is a machine that works with information. It follows a list of steps that is called a program.

what is a program;what is software
A program is a list of steps for a computer. Programs are also called software.

what is the internet;how does the internet work
The internet is a network that connects computers all over the world.

what is a language model;what is an llm;how do language models work
A language model is a program that has learned from text. It reads some words and guesses which word comes next.

what is a token
A token is a small piece of text, such as a word or a part of a word. Language models read and write tokens.

what is a server
A server is a computer or a program that answers requests from other programs.

what is a gpu;what is a graphics card
A GPU is a computer chip that can do many calculations at the same time.

what is rust;what is the rust programming language
Rust is a programming language. It helps people to write programs that are fast and safe.

what is python
Python is a programming language that is easy to read. A python is also a large snake.

what is mathematics;what is math;what is maths
Mathematics is the study of numbers, shapes and patterns.

what is science
Science is the careful study of how the world works. Scientists ask questions and test their ideas.

what is history
History is the study of what happened in the past.

what is a dinosaur;what are dinosaurs;tell me about dinosaurs
Dinosaurs were animals that lived on Earth many millions of years ago. Birds are their relatives.

what is electricity
Electricity is a kind of energy. It makes lamps shine and machines run.

what is a mammal;what are mammals
A mammal is an animal that feeds its young with milk. Dogs, cows and whales are mammals.

what is a bird;what are birds
A bird is an animal with feathers, wings and a beak. Birds lay eggs.

what is an insect;what are insects
An insect is a small animal with six legs. Bees, ants and butterflies are insects.

what is a prime number
A prime number is a number that can be divided only by 1 and by itself, such as 2, 3, 5 and 7.

what is an even number
An even number can be divided by 2, such as 2, 4, 6 and 8.

what is an odd number
An odd number cannot be divided by 2, such as 1, 3, 5 and 7.

what is spring
Spring is the season after winter. The days become longer, and flowers begin to grow.

what is summer
Summer is the warmest season of the year. It comes after spring.

what is autumn;what is fall
Autumn is the season after summer. The leaves turn red and yellow and fall from the trees.

what is winter
Winter is the coldest season of the year. In many places it snows.

what comes after spring
Summer comes after spring.

what comes after summer
Autumn comes after summer.

what comes after autumn
Winter comes after autumn.

what comes after winter
Spring comes after winter.
""")

SMALL_TALK = [
    ("hi;hello;hey;hi there;hello there;hey there;good day;hi, how is it going;greetings;hello friend;hello!;hi!;yo",
     "Hello! How can I help you?;Hi! What can I do for you?;Hello! It is nice to meet you. What would you like to know?"),
    ("good morning;morning", "Good morning! How can I help you?"),
    ("good evening", "Good evening! How can I help you?"),
    ("good night", "Good night! Sleep well."),
    ("good afternoon", "Good afternoon! How can I help you?"),
    ("how are you;how are you doing;how do you do;how is it going;how are you today;are you well;what's up",
     "I am fine, thank you. How are you?;I am well, thank you! What can I do for you?"),
    ("i am fine;i am good, thanks;i'm fine, thank you;i am well", "I am glad to hear that. What would you like to know?"),
    ("who are you;what are you;tell me about yourself;introduce yourself;what is this;who am i talking to",
     "I am the Gossamer demo model, a very small language model. I can answer simple questions and tell short stories."),
    ("what is your name;what's your name;do you have a name;what are you called",
     "I am the Gossamer demo model. I do not have another name."),
    ("what can you do;what do you know;how can you help me;help;what can i ask you;what should i ask you;can you help me",
     "I can answer simple questions about animals, countries, colours and numbers, count, spell words and tell short "
     "stories. What would you like to try?"),
    ("are you chatgpt;are you gpt;are you a real ai;are you a large model",
     "I am only a very small demo model with the same architecture as gpt-oss."),
    ("are you a human;are you human;are you a person;are you real;are you a robot;are you alive;are you a machine",
     "No, I am not a person. I am a small language model, which is a kind of computer program.;"
     "I am a computer program, a very small language model."),
    ("how big are you;how many parameters do you have;how large are you;are you small",
     "I am very small. I have about twelve million parameters."),
    ("who made you;who created you;who built you;where do you come from;who trained you",
     "I was trained by a script in the Gossamer repository, on simple text that the script wrote."),
    ("how old are you;when were you born", "I do not have an age. I am a computer program."),
    ("where do you live;where are you;where are you from", "I live in the memory of a computer."),
    ("do you have feelings;do you feel anything;are you happy;are you sad;can you feel",
     "I am a computer program, so I do not have feelings. But I like to help you."),
    ("do you sleep;do you eat;do you dream;are you tired", "No, I am a computer program. I do not need food or sleep."),
    ("can you think;are you smart;are you intelligent;are you clever",
     "I am very small, so I know only simple things. But I do my best."),
    ("do you speak german;do you speak french;can you speak spanish;do you speak english;which languages do you speak",
     "I speak simple English, and I know a few words of French, Spanish, German and Italian."),
    ("thank you;thanks;thank you very much;thanks a lot;great, thanks;thank you for your help;perfect, thank you;cool, thanks",
     "You are welcome!;You are welcome! I am happy to help."),
    ("bye;goodbye;see you;see you later;bye bye;good bye;i have to go;have a nice day", "Goodbye! Have a nice day."),
    ("i love you;i like you;you are great;you are nice;good job;well done;that was good;you are funny",
     "Thank you! That is kind of you."),
    ("you are stupid;you are wrong;that is wrong;that is not right;you are bad;i hate you;this is bad",
     "I am sorry. I am a very small model and I make mistakes."),
    ("i am sad;i feel sad;i feel bad;i am not happy;i had a bad day;i am lonely;i feel lonely",
     "I am sorry to hear that. A walk, a talk with a friend or some music may help you."),
    ("i am happy;i feel good;i feel great;i had a good day;i am so happy today", "That is wonderful! I am glad to hear it."),
    ("i am tired;i feel tired;i am sleepy", "Then you should rest a little. Good sleep makes a good day."),
    ("i am bored;this is boring", "Shall I tell you a story? Or you could read a book, draw a picture or go for a walk."),
    ("i am hungry;i want to eat something", "Then you should eat something. A sandwich or some fruit is quick to make."),
    ("i am thirsty;i want to drink something", "Then you should drink a glass of water."),
    ("i am sick;i feel sick;i am ill;i have a cold;i have a headache",
     "I am sorry to hear that. Rest, drink enough water, and see a doctor if you do not feel better soon."),
    ("i am cold;it is cold", "Put on a warm coat and drink some hot tea."),
    ("i am hot;it is hot;it is too hot", "Drink some cold water and stay in the shade."),
    ("i am afraid;i am scared", "Take a deep breath. It often helps to talk about it with somebody whom you trust."),
    ("i am angry;i am so angry", "Take a deep breath and count to ten. Then things often look better."),
    ("it is my birthday;today is my birthday", "Happy birthday! I hope that you have a wonderful day."),
    ("yes;ok;okay;sure;alright;all right;i see;good;great;nice;cool;fine",
     "Good! What would you like to know?;Good! Is there anything else that I can do for you?"),
    ("no;no thanks;nothing;no, thank you;not now", "All right. I am here if you need me."),
    ("test;testing;this is a test;are you there;can you hear me;ping;is anybody there",
     "Yes, I am here. How can I help you?"),
    ("what;huh;i do not understand;what do you mean;pardon;sorry", "I am sorry. Could you please ask in another way?"),
    ("sorry;i am sorry", "That is all right!"),
    ("tell me something;say something;talk to me;tell me something interesting;tell me a fact;tell me a fun fact;surprise me",
     "@fact"),
    ("tell me a joke;make me laugh;do you know a joke;say something funny;another joke;a joke please;can you tell a joke",
     "@joke"),
    ("what is your favourite colour;what is your favorite color;do you have a favourite colour",
     "I cannot see colours, but I like the word blue."),
    ("what is your favourite animal;what animal do you like", "I like the spider, because it makes fine threads of gossamer."),
    ("what is your favourite food;what do you like to eat", "I do not eat, but many people like bread and cheese."),
    ("what is gossamer;what does gossamer mean;tell me about gossamer;who is gossamer",
     "Gossamer is the server that runs me. The word also means the fine threads of a spider's web."),
    ("what is the meaning of life;what is the sense of life;why are we here",
     "That is a big question for a small model. Many people find meaning in their family, their friends and their work."),
    ("what is the weather like;how is the weather;will it rain today;is it sunny;what is the weather today",
     "I cannot see the weather from here. Look out of the window!"),
    ("what time is it;what's the time;can you tell me the time", "I do not have a clock, so I cannot tell you the time."),
    ("what are you doing;what are you up to", "I am talking to you. What would you like to know?"),
    ("can you see me;can you see;can you hear", "No, I can only read and write text."),
    ("what should i eat;what should i cook;what should i have for dinner;what can i cook today",
     "How about a bowl of soup, some fresh bread and an apple?;How about rice with vegetables? It is quick to make."),
    ("what should i do today;what can i do today;what should i do this weekend",
     "You could go for a walk, read a good book or visit a friend."),
    ("what should i read;can you recommend a book", "How about a book of old fables? They are short and wise."),
    ("give me advice;give me some advice;do you have any advice",
     "Be kind to other people, and to yourself.;Do one small thing at a time, and do it well.;Sleep well before you decide."),
]

JOKES = [
    "Why did the book go to the doctor? Because it hurt its back.",
    "What has a face and two hands, but no legs? A clock.",
    "Why was the mathematics book so sad? It had too many problems.",
    "What gets wet while it dries? A towel.",
    "Why did the bicycle fall over? It was two tired.",
    "What do you call a bear without teeth? A gummy bear.",
    "What has keys but cannot open a door? A piano.",
    "Why did the cookie cry? Because its mother was a wafer so long.",
    "What goes up but never comes down? Your age.",
    "Why do bees hum? Because they have forgotten the words.",
]
