"""What the demo model knows: small hand-written tables of everyday facts.

Every table is plain text, one record a line, fields separated by `|`. The records were written for this
project; they are common knowledge, and each is meant to be true without further context.
"""


def _table(text):
    return [tuple(field.strip() for field in line.split("|")) for line in text.strip().splitlines()]


# country | capital | continent | main language
COUNTRIES = _table("""
France|Paris|Europe|French
Germany|Berlin|Europe|German
Italy|Rome|Europe|Italian
Spain|Madrid|Europe|Spanish
Portugal|Lisbon|Europe|Portuguese
Austria|Vienna|Europe|German
Greece|Athens|Europe|Greek
Ireland|Dublin|Europe|English
Norway|Oslo|Europe|Norwegian
Sweden|Stockholm|Europe|Swedish
Denmark|Copenhagen|Europe|Danish
Finland|Helsinki|Europe|Finnish
Iceland|Reykjavik|Europe|Icelandic
Poland|Warsaw|Europe|Polish
Hungary|Budapest|Europe|Hungarian
Romania|Bucharest|Europe|Romanian
Bulgaria|Sofia|Europe|Bulgarian
Croatia|Zagreb|Europe|Croatian
Ukraine|Kyiv|Europe|Ukrainian
Belgium|Brussels|Europe|Dutch
the Netherlands|Amsterdam|Europe|Dutch
the Czech Republic|Prague|Europe|Czech
England|London|Europe|English
the United Kingdom|London|Europe|English
Scotland|Edinburgh|Europe|English
Russia|Moscow|Europe|Russian
Turkey|Ankara|Asia|Turkish
China|Beijing|Asia|Chinese
Japan|Tokyo|Asia|Japanese
India|New Delhi|Asia|Hindi
Thailand|Bangkok|Asia|Thai
Vietnam|Hanoi|Asia|Vietnamese
South Korea|Seoul|Asia|Korean
Mongolia|Ulaanbaatar|Asia|Mongolian
Indonesia|Jakarta|Asia|Indonesian
the Philippines|Manila|Asia|Filipino
Nepal|Kathmandu|Asia|Nepali
Pakistan|Islamabad|Asia|Urdu
Bangladesh|Dhaka|Asia|Bengali
Iran|Tehran|Asia|Persian
Iraq|Baghdad|Asia|Arabic
Saudi Arabia|Riyadh|Asia|Arabic
Egypt|Cairo|Africa|Arabic
Morocco|Rabat|Africa|Arabic
Algeria|Algiers|Africa|Arabic
Tunisia|Tunis|Africa|Arabic
Kenya|Nairobi|Africa|Swahili
Ethiopia|Addis Ababa|Africa|Amharic
Ghana|Accra|Africa|English
Nigeria|Abuja|Africa|English
Senegal|Dakar|Africa|French
the United States|Washington|North America|English
Canada|Ottawa|North America|English
Mexico|Mexico City|North America|Spanish
Cuba|Havana|North America|Spanish
Jamaica|Kingston|North America|English
Brazil|Brasilia|South America|Portuguese
Argentina|Buenos Aires|South America|Spanish
Chile|Santiago|South America|Spanish
Peru|Lima|South America|Spanish
Colombia|Bogota|South America|Spanish
Ecuador|Quito|South America|Spanish
Uruguay|Montevideo|South America|Spanish
Australia|Canberra|Oceania|English
New Zealand|Wellington|Oceania|English
""")

# animal | plural | kind | legs | sound | home | food | colour | young | size 1..9 | a fact
ANIMALS = _table("""
cat|cats|mammal|4|meow|in houses and gardens|fish and mice|black, white, grey or orange|kitten|3|Cats sleep for most of the day.
dog|dogs|mammal|4|woof|with people|meat|brown, black or white|puppy|4|Dogs have a very good sense of smell.
cow|cows|mammal|4|moo|on farms|grass|brown or black and white|calf|7|Cows give us milk.
horse|horses|mammal|4|neigh|on farms|grass and hay|brown, black or white|foal|7|Horses can sleep while they stand.
pig|pigs|mammal|4|oink|on farms|roots, corn and fruit|pink|piglet|5|Pigs are very clever animals.
sheep|sheep|mammal|4|baa|on hills and farms|grass|white|lamb|5|Sheep give us wool.
goat|goats|mammal|4|bleat|on mountains and farms|grass and leaves|white, brown or grey|kid|5|Goats are good at climbing.
mouse|mice|mammal|4|squeak|in fields and houses|seeds and grain|grey or brown|pup|1|Mice can fit through very small holes.
rabbit|rabbits|mammal|4|a quiet squeak|in burrows under the ground|grass and carrots|brown, grey or white|kit|3|Rabbits have long ears.
fox|foxes|mammal|4|bark|in forests|mice and berries|red|cub|4|A fox has a thick, bushy tail.
wolf|wolves|mammal|4|howl|in forests|meat|grey|pup|5|Wolves live in groups called packs.
bear|bears|mammal|4|growl|in forests|berries, fish and honey|brown or black|cub|7|Many bears sleep through the winter.
lion|lions|mammal|4|roar|on the plains of Africa|meat|yellow and brown|cub|7|A group of lions is called a pride.
tiger|tigers|mammal|4|roar|in the forests of Asia|meat|orange with black stripes|cub|7|No two tigers have the same stripes.
elephant|elephants|mammal|4|trumpet|in Africa and Asia|grass, leaves and fruit|grey|calf|8|The elephant is the largest land animal.
giraffe|giraffes|mammal|4|a low hum|on the plains of Africa|leaves|yellow with brown spots|calf|8|The giraffe is the tallest animal.
zebra|zebras|mammal|4|bark|on the plains of Africa|grass|black and white|foal|6|Every zebra has its own pattern of stripes.
monkey|monkeys|mammal|2|chatter|in warm forests|fruit and leaves|brown|infant|4|Monkeys are very good at climbing trees.
camel|camels|mammal|4|grunt|in the desert|dry grass and leaves|light brown|calf|7|A camel stores fat in its hump.
kangaroo|kangaroos|mammal|2|click|in Australia|grass|brown or grey|joey|6|A kangaroo carries its baby in a pouch.
squirrel|squirrels|mammal|4|chatter|in trees|nuts and seeds|red or grey|kit|2|Squirrels hide nuts for the winter.
hedgehog|hedgehogs|mammal|4|snuffle|in gardens and hedges|worms and beetles|brown|hoglet|2|A hedgehog rolls into a ball when it is afraid.
bat|bats|mammal|2|squeak|in caves|insects and fruit|brown or black|pup|1|The bat is the only mammal that can really fly.
deer|deer|mammal|4|bellow|in forests|grass and leaves|brown|fawn|6|Male deer grow new antlers every year.
whale|whales|mammal|0|song|in the ocean|small sea animals|blue or grey|calf|9|The blue whale is the largest animal on Earth.
dolphin|dolphins|mammal|0|whistle|in the ocean|fish|grey|calf|6|Dolphins are clever and friendly.
seal|seals|mammal|0|bark|by cold seas|fish|grey or brown|pup|6|Seals can hold their breath for a long time.
bird|birds|bird|2|chirp|in trees|seeds and insects|many colours|chick|2|Most birds can fly.
chicken|chickens|bird|2|cluck|on farms|grain and worms|brown or white|chick|3|Chickens lay eggs.
duck|ducks|bird|2|quack|on lakes and ponds|water plants and insects|brown, green or white|duckling|3|Ducks have feet like paddles.
goose|geese|bird|2|honk|by lakes and rivers|grass|grey or white|gosling|4|Geese fly south for the winter.
owl|owls|bird|2|hoot|in forests and barns|mice|brown or white|owlet|3|Owls hunt at night.
crow|crows|bird|2|caw|in trees and fields|almost anything|black|chick|2|Crows can solve simple puzzles.
eagle|eagles|bird|2|a high cry|on cliffs and in tall trees|fish and small animals|brown|eaglet|4|Eagles have very sharp eyes.
parrot|parrots|bird|2|squawk|in warm forests|seeds and fruit|green, red or blue|chick|2|Some parrots can copy human words.
penguin|penguins|bird|2|honk|near the South Pole|fish|black and white|chick|4|Penguins cannot fly, but they swim very well.
swan|swans|bird|2|hiss|on lakes and rivers|water plants|white|cygnet|4|Swans often stay with one partner for life.
fish|fish|fish|0|no sound|in water|small plants and animals|many colours|fry|2|Fish breathe with gills.
shark|sharks|fish|0|no sound|in the ocean|fish|grey|pup|7|A shark grows new teeth all its life.
salmon|salmon|fish|0|no sound|in rivers and the sea|insects and small fish|silver|fry|3|Salmon swim up rivers to lay their eggs.
frog|frogs|amphibian|4|croak|near ponds|insects|green|tadpole|1|A frog begins its life as a tadpole.
snake|snakes|reptile|0|hiss|in grass and under stones|mice and eggs|green or brown|snakelet|3|A snake smells with its tongue.
turtle|turtles|reptile|4|a quiet hiss|in water and on land|plants and small animals|green|hatchling|4|A turtle carries its house on its back.
lizard|lizards|reptile|4|no sound|in warm places|insects|green or brown|hatchling|2|Some lizards can lose their tail and grow a new one.
crocodile|crocodiles|reptile|4|growl|in warm rivers|fish and meat|green|hatchling|7|Crocodiles can wait under water for a long time.
bee|bees|insect|6|buzz|in hives|nectar|yellow and black|larva|1|Bees make honey.
ant|ants|insect|6|no sound|in nests under the ground|almost anything|black or red|larva|1|Ants can carry things much heavier than they are.
butterfly|butterflies|insect|6|no sound|in gardens and meadows|nectar|many colours|caterpillar|1|A butterfly begins its life as a caterpillar.
spider|spiders|arachnid|8|no sound|in webs|insects|brown or black|spiderling|1|Many spiders catch their food in a web.
snail|snails|mollusc|0|no sound|in damp gardens|leaves|brown|hatchling|1|A snail carries its shell on its back.
octopus|octopuses|mollusc|0|no sound|in the ocean|crabs and fish|many colours|larva|4|An octopus has eight arms and three hearts.
""")
FLYERS = {"bat", "bird", "duck", "goose", "owl", "crow", "eagle", "parrot", "swan", "bee", "butterfly"}
SWIMMERS = {"whale", "dolphin", "seal", "duck", "goose", "penguin", "swan", "fish", "shark", "salmon", "frog", "turtle",
            "crocodile", "octopus", "dog", "horse", "bear", "elephant", "tiger", "deer"}

# thing | what it is | colour or empty | what it is for or empty
THINGS = _table("""
apple|a round fruit that grows on trees|red, green or yellow|eating
banana|a long, sweet fruit with a thick skin|yellow|eating
orange|a round, juicy fruit|orange|eating and making juice
lemon|a sour fruit|yellow|cooking and making drinks
strawberry|a small, sweet fruit with tiny seeds on the outside|red|eating
cherry|a small, round fruit with a stone|red|eating
carrot|a long root vegetable|orange|eating
tomato|a soft, juicy fruit that is used as a vegetable|red|salads and sauces
potato|a root vegetable that grows under the ground|brown|cooking
onion|a round vegetable with many layers|brown, red or white|cooking
cucumber|a long vegetable with a lot of water in it|green|salads
bread|a food made from flour, water and yeast|brown or white|eating
cheese|a food made from milk|yellow or white|eating
milk|a drink that comes from cows and other mammals|white|drinking
honey|a sweet food made by bees|golden|eating
chocolate|a sweet food made from cocoa beans|brown|eating
rice|a grain that grows in wet fields|white or brown|eating
salt|a white mineral that makes food taste better|white|cooking
sugar|a sweet substance made from plants|white|making food sweet
tea|a hot drink made from leaves|brown or green|drinking
coffee|a drink made from roasted beans|dark brown|drinking and staying awake
book|a set of pages with words or pictures|many colours|reading
pen|a tool that writes with ink|many colours|writing
pencil|a tool that writes with a soft grey core|many colours|writing and drawing
paper|a thin material made from wood|white|writing and printing
chair|a seat for one person|many colours|sitting
table|a piece of furniture with a flat top|brown or white|eating and working
bed|a piece of furniture for sleeping|many colours|sleeping
lamp|a thing that gives light|many colours|lighting a room
clock|a machine that shows the time|many colours|telling the time
key|a small piece of metal that opens a lock|silver|opening doors
door|a flat piece of wood or metal that closes a room|brown or white|going in and out
window|an opening in a wall with glass in it|clear|letting in light
house|a building where people live|many colours|living in
school|a place where children learn|many colours|learning
hospital|a place where sick people are helped|white|helping sick people
library|a place where you can borrow books|many colours|reading and borrowing books
bridge|something that carries a road over a river|grey|crossing a river
car|a vehicle with four wheels and an engine|many colours|driving
bicycle|a vehicle with two wheels that you move with your feet|many colours|riding
train|a long vehicle that runs on rails|many colours|travelling
boat|a small vehicle that floats on water|many colours|travelling on water
ship|a large vehicle that sails on the sea|many colours|carrying people and goods over the sea
plane|a vehicle with wings that flies|white|flying to far places
bus|a large vehicle that carries many people|many colours|carrying many people
hammer|a tool for hitting nails|brown and grey|hitting nails
knife|a tool with a sharp blade|silver|cutting
spoon|a small tool with a round end|silver|eating soup
fork|a small tool with points|silver|eating
cup|a small container for drinks|white|drinking
umbrella|a thing that keeps you dry in the rain|many colours|staying dry in the rain
phone|a machine for talking to people who are far away|black or white|talking to people far away
computer|a machine that works with information|black, grey or white|writing, counting and playing
camera|a machine that takes pictures|black|taking pictures
piano|a musical instrument with black and white keys|black|making music
guitar|a musical instrument with strings|brown|making music
drum|a musical instrument that you hit|many colours|making music
ball|a round toy|many colours|playing
coat|a warm piece of clothing|many colours|keeping warm
shoe|a thing that you wear on your foot|many colours|walking
hat|a thing that you wear on your head|many colours|covering your head
soap|a substance for washing|white|washing
mirror|a piece of glass in which you can see yourself|silver|seeing yourself
candle|a stick of wax that gives light when it burns|white|giving light
tree|a tall plant with a trunk and branches|green and brown|giving shade and wood
flower|the colourful part of a plant|many colours|making seeds
grass|a low green plant that covers the ground|green|feeding animals
leaf|a flat green part of a plant|green|catching sunlight
rose|a flower with a sweet smell and thorns|red, white or pink|giving as a present
""")

# plain things with one well-known colour
COLOURS = _table("""
the sky|blue
grass|green
snow|white
coal|black
blood|red
a banana|yellow
a carrot|orange
a lemon|yellow
a strawberry|red
milk|white
chocolate|brown
a tomato|red
the sun|yellow
a leaf in summer|green
an elephant|grey
a polar bear|white
a crow|black
a frog|green
a flamingo|pink
an orange|orange
the sea|blue
a fire engine|red
the night sky|black
a cucumber|green
a pig|pink
a pumpkin|orange
cheese|yellow
an emerald|green
a ruby|red
gold|yellow
silver|grey
cotton|white
a violet|purple
sand|yellow
""")

OPPOSITES = _table("""
hot|cold
big|small
large|tiny
tall|short
long|short
fast|slow
old|young
new|old
good|bad
happy|sad
light|dark
day|night
up|down
left|right
open|closed
full|empty
hard|soft
heavy|light
high|low
wet|dry
clean|dirty
rich|poor
strong|weak
loud|quiet
early|late
first|last
near|far
inside|outside
black|white
yes|no
true|false
right|wrong
easy|difficult
thick|thin
wide|narrow
sweet|sour
deep|shallow
sharp|blunt
brave|afraid
kind|cruel
begin|end
start|stop
buy|sell
give|take
win|lose
push|pull
come|go
laugh|cry
love|hate
remember|forget
arrive|leave
always|never
before|after
above|below
north|south
east|west
summer|winter
morning|evening
friend|enemy
question|answer
noisy|quiet
smooth|rough
straight|crooked
cheap|expensive
awake|asleep
alive|dead
safe|dangerous
polite|rude
lazy|busy
simple|complicated
warm|cool
front|back
top|bottom
male|female
real|fake
beautiful|ugly
hungry|full
""")

SYNONYMS = _table("""
big|large
small|little
happy|glad
sad|unhappy
fast|quick
begin|start
end|finish
clever|smart
angry|cross
beautiful|pretty
scared|afraid
shout|yell
easy|simple
hard|difficult
rich|wealthy
quiet|silent
tired|sleepy
sick|ill
answer|reply
choose|pick
close|shut
funny|amusing
gift|present
help|aid
jump|leap
kind|friendly
mistake|error
road|street
strange|odd
think|believe
""")

PLURALS = _table("""
child|children
man|men
woman|women
foot|feet
tooth|teeth
person|people
knife|knives
city|cities
baby|babies
box|boxes
bus|buses
potato|potatoes
story|stories
country|countries
house|houses
book|books
tree|trees
apple|apples
star|stars
day|days
""")

PAST = _table("""
go|went
eat|ate
see|saw
run|ran
come|came
take|took
give|gave
write|wrote
read|read
speak|spoke
sing|sang
swim|swam
drink|drank
sleep|slept
buy|bought
bring|brought
think|thought
make|made
find|found
fly|flew
know|knew
grow|grew
break|broke
walk|walked
play|played
jump|jumped
help|helped
ask|asked
""")

# English | French | Spanish | German | Italian
WORDS = _table("""
hello|bonjour|hola|hallo|ciao
goodbye|au revoir|adiós|auf Wiedersehen|arrivederci
thank you|merci|gracias|danke|grazie
please|s'il vous plaît|por favor|bitte|per favore
yes|oui|sí|ja|sì
no|non|no|nein|no
water|eau|agua|Wasser|acqua
bread|pain|pan|Brot|pane
house|maison|casa|Haus|casa
cat|chat|gato|Katze|gatto
dog|chien|perro|Hund|cane
friend|ami|amigo|Freund|amico
book|livre|libro|Buch|libro
sun|soleil|sol|Sonne|sole
moon|lune|luna|Mond|luna
red|rouge|rojo|rot|rosso
blue|bleu|azul|blau|blu
green|vert|verde|grün|verde
one|un|uno|eins|uno
two|deux|dos|zwei|due
three|trois|tres|drei|tre
milk|lait|leche|Milch|latte
tree|arbre|árbol|Baum|albero
school|école|escuela|Schule|scuola
""")
LANGUAGES = ["French", "Spanish", "German", "Italian"]

LISTS = {
    "animals": ["cat", "dog", "horse", "cow", "lion", "bear", "fox", "rabbit", "elephant", "tiger"],
    "fruits": ["apple", "banana", "orange", "pear", "cherry", "grape", "lemon", "peach", "plum", "mango"],
    "vegetables": ["carrot", "potato", "onion", "cabbage", "pea", "bean", "cucumber", "pumpkin", "spinach", "leek"],
    "colours": ["red", "blue", "green", "yellow", "orange", "purple", "black", "white", "pink", "brown"],
    "colors": ["red", "blue", "green", "yellow", "orange", "purple", "black", "white", "pink", "brown"],
    "birds": ["owl", "crow", "eagle", "duck", "swan", "parrot", "penguin", "goose", "robin", "sparrow"],
    "countries": ["France", "Japan", "Brazil", "Canada", "Egypt", "India", "Spain", "Kenya", "Norway", "Peru"],
    "cities": ["Paris", "London", "Tokyo", "Rome", "Cairo", "Berlin", "Lima", "Madrid", "Oslo", "Ottawa"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
    "sports": ["football", "tennis", "swimming", "running", "basketball", "cycling", "skiing", "hockey"],
    "instruments": ["piano", "guitar", "drum", "violin", "flute", "trumpet", "harp", "cello"],
    "tools": ["hammer", "saw", "screwdriver", "drill", "spade", "rake", "wrench", "axe"],
    "insects": ["bee", "ant", "butterfly", "beetle", "fly", "wasp", "cricket", "moth"],
    "flowers": ["rose", "tulip", "daisy", "lily", "violet", "sunflower", "poppy", "daffodil"],
    "trees": ["oak", "pine", "birch", "maple", "willow", "beech", "ash", "fir"],
    "drinks": ["water", "milk", "tea", "coffee", "juice", "lemonade", "cocoa", "soda"],
    "jobs": ["teacher", "doctor", "baker", "farmer", "nurse", "pilot", "cook", "painter"],
    "metals": ["iron", "gold", "silver", "copper", "tin", "lead", "zinc", "nickel"],
    "continents": ["Africa", "Antarctica", "Asia", "Europe", "North America", "Oceania", "South America"],
}

# sorts used by "what kind of thing is X" and odd-one-out questions
SHAPES = [("triangle", 3), ("square", 4), ("rectangle", 4), ("pentagon", 5), ("hexagon", 6), ("octagon", 8)]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December"]
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

GIRLS = ["Anna", "Emma", "Lucy", "Mia", "Sara", "Julia", "Lily", "Ella", "Nora", "Clara", "Rosa", "Alice", "Maria",
         "Eva", "Grace", "Ruth"]
BOYS = ["Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Paul", "Peter", "Daniel", "David", "Adam", "Henry", "Oscar", "Luke",
        "Felix", "Simon"]

RHYMES = _table("""
cat|hat
dog|fog
house|mouse
tree|bee
star|car
moon|spoon
light|night
rain|train
day|play
sky|fly
blue|shoe
bear|chair
king|ring
cake|lake
boat|coat
fish|dish
book|cook
sun|run
ball|wall
bed|red
sea|tea
snow|go
""")

JOBS = _table("""
teacher|helps children learn|school
doctor|helps people who are sick|hospital
nurse|cares for people who are sick|hospital
baker|makes bread and cakes|bakery
farmer|grows food and keeps animals|farm
pilot|flies planes|plane
cook|makes meals|kitchen
painter|paints pictures or walls|studio
carpenter|makes things out of wood|workshop
gardener|looks after plants|garden
firefighter|puts out fires and saves people|fire station
sailor|works on a ship|ship
tailor|makes and mends clothes|shop
librarian|looks after books|library
dentist|looks after teeth|practice
musician|plays music|concert hall
scientist|tries to find out how things work|laboratory
writer|writes books and stories|desk
postman|brings letters and parcels|street
driver|drives a bus, a car or a truck|road
""")
