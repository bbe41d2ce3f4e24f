"""How the sample encyclopedia says and asks things: the grammar that `sample` draws from.

``[a|b]`` is a choice, ``{s}`` the subject, ``{a}`` the answer. Questions are put in other words than
statements, and those words change places all over the articles: what belongs together has to be
learnt from them.
"""
from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Relation(NamedTuple):
    """One kind of fact: how an article states it and how a question asks for it."""

    statements: Tuple[str, ...]
    questions: Tuple[str, ...]


_FOUNDED = "[founded|established|settled|laid out]"
_WHEN = "[When|In what year|In which year]"
_BUILT = "[built|designed|planned|constructed]"
_CLIMBED = "[climbed|conquered|scaled]"
_DESCRIBED = "[described|discovered|named|recorded]"
_INVENTED = "[invented|devised|created|designed]"
_PLACED = "[lies|is located|is situated|can be found]"
_KNOWN = "[famous|known|celebrated|renowned]"

# Kind of entity -> attribute -> phrases. The order of attributes is the order in an article.
RELATIONS: Dict[str, Dict[str, Relation]] = {
    "city": {
        "region": Relation(
            (f"{{s}} {_PLACED} in the [region|province] of {{a}}",
             "{s} [belongs to|is part of] the [region|province] of {a}",
             "among the [cities|towns] of {a} is {s}"),
            ("In which [region|province] is {s} [located|situated|found]?",
             "[What|Which] [region|province] does {s} belong to?",
             "[What|Which] [region|province] is {s} part of?")),
        "river": Relation(
            ("{s} [lies|stands|was built] on the [banks of the |river |stream |]{a}",
             "the [river|stream|water] {a} [flows|runs|passes] through {s}",
             "through {s} [flows|runs] the [river |stream |]{a}"),
            ("[Which|What] [river|stream] [flows|runs|passes] through {s}?",
             "On [which|what] [river|stream] does {s} [lie|stand]?",
             "[Which|What] [river|stream] was {s} built on?")),
        "founder": Relation(
            (f"{{s}} was {_FOUNDED} by {{a}}", f"{{a}} {_FOUNDED} {{s}}",
             "{s} [owes its beginning|traces its origin] to {a}"),
            (f"Who {_FOUNDED} {{s}}?", f"By whom was {{s}} {_FOUNDED}?",
             "To whom does {s} [owe its beginning|trace its origin]?")),
        "founded": Relation(
            (f"{{s}} was {_FOUNDED} in [the year |]{{a}}",
             "the [first|oldest] houses of {s} [date from|were put up in] {a}"),
            (f"{_WHEN} was {{s}} {_FOUNDED}?",
             "From [what|which] year do the [first|oldest] houses of {s} date?")),
        "mayor": Relation(
            ("{a} was the [mayor|governor|head] of {s}", "{s} was [governed|ruled|led] by {a}",
             "at the head of {s} [stood|was] {a}"),
            ("Who was the [mayor|governor|head] of {s}?", "Who [governed|ruled|led] {s}?",
             "By whom was {s} [governed|ruled|led]?")),
        "population": Relation(
            ("{s} has [about |some |roughly |]{a} [inhabitants|residents|people]",
             "[about|some|roughly] {a} [inhabitants|residents|people] [live|dwell] in {s}"),
            ("How many [inhabitants|residents|people] does {s} have?",
             "How many [inhabitants|residents|people] [live|dwell] in {s}?",
             "[How large|What] is the population of {s}?")),
        "product": Relation(
            (f"{{s}} is {_KNOWN} for its {{a}}",
             "the [workshops|traders|merchants] of {s} [sell|export|trade in] {a}",
             "{a} [bring|earn] {s} most of its money"),
            (f"What is {{s}} {_KNOWN} for?",
             "What do the [workshops|traders|merchants] of {s} [sell|export|trade in]?",
             "[What|Which goods] [bring|earn] {s} most of its money?")),
        "neighbour": Relation(
            ("{s} is [close to|near|not far from] {a}",
             "a [road|path|coach] [leads|goes] from {s} to {a}"),
            ("[Which|What] [city|town] is {s} [close to|near|not far from]?",
             "Where does the [road|path|coach] from {s} [lead|go]?")),
    },
    "person": {
        "profession": Relation(
            ("{s} was a {a}", "{s} [worked as|earned a living as|made a name as] a {a}",
             "by [profession|trade|occupation] {s} was a {a}"),
            ("What was the [profession|trade|occupation] of {s}?", "What did {s} work as?")),
        "birthplace": Relation(
            ("{s} was born in {a}", "{s} [came from|was a native of|grew up in] {a}",
             "the [birthplace|home town] of {s} was {a}"),
            ("Where was {s} born?", "What was the [birthplace|home town] of {s}?",
             "Where did {s} [come from|grow up]?")),
        "born": Relation(
            ("{s} was born in [the year |]{a}", "the birth of {s} [fell in|is dated to] {a}"),
            (f"{_WHEN} was {{s}} born?", "What is the birth year of {s}?")),
        "teacher": Relation(
            ("{s} [studied under|learned from|was taught by|was a pupil of] {a}",
             "{a} [taught|trained|instructed] {s}",
             "the [teacher|master] of {s} was {a}"),
            ("Who [taught|trained|instructed] {s}?", "Under whom did {s} study?",
             "Who was the [teacher|master] of {s}?", "Whose pupil was {s}?")),
        "spouse": Relation(
            ("{s} [married|wed|was married to] {a}", "{s} shared a home with {a}"),
            ("Whom did {s} [marry|wed]?", "To whom was {s} married?",
             "With whom did {s} share a home?")),
        "residence": Relation(
            ("{s} [lived|settled|worked] in {a} [for many years|until old age]",
             "the [house|home] of {s} [stood|was] in {a}"),
            ("Where did {s} [live|settle|work] [for many years|until old age]?",
             "Where [stood|was] the [house|home] of {s}?")),
        "work": Relation(
            ("{s} is [best known|remembered|famous] for {a}",
             "the [best known|most famous|main] work of {s} is {a}",
             "{s} [completed|finished] {a} [after long labour|late in life]"),
            ("What is {s} [best known|remembered|famous] for?",
             "What is the [best known|most famous|main] work of {s}?",
             "What did {s} [complete|finish] [after long labour|late in life]?")),
        "died": Relation(
            ("{s} [died|passed away] in [the year |]{a}",
             "the life of {s} [ended|came to an end] in {a}"),
            (f"{_WHEN} did {{s}} [die|pass away]?", f"{_WHEN} did the life of {{s}} end?")),
    },
    "river": {
        "source": Relation(
            ("the {s} [rises|begins|springs] on Mount {a}",
             "the [source|spring] of the {s} is on Mount {a}"),
            ("On [which|what] mountain does the {s} [rise|begin|spring]?",
             "Where is the [source|spring] of the {s}?")),
        "mouth": Relation(
            ("the {s} [flows|empties|drains] into Lake {a}",
             "the waters of the {s} [end|come to rest] in Lake {a}"),
            ("Into [which|what] lake does the {s} [flow|empty|drain]?",
             "Where do the waters of the {s} [end|come to rest]?")),
        "length": Relation(
            ("the {s} is {a} miles long", "the {s} has a length of {a} miles",
             "the course of the {s} [measures|covers] {a} miles"),
            ("How long is the {s}?", "What is the length of the {s}?",
             "How many miles does the course of the {s} [measure|cover]?")),
        "fish": Relation(
            ("the {s} is full of {a}", "[fishermen|anglers] [catch|take] {a} from the {s}"),
            ("What is the {s} full of?", "What do [fishermen|anglers] [catch|take] from the {s}?")),
    },
    "mountain": {
        "region": Relation(
            (f"Mount {{s}} {_PLACED} in {{a}}", "Mount {s} [rises|towers] above the plains of {a}"),
            ("Where [is Mount {s} located|is Mount {s} situated|can Mount {s} be found]?",
             "Above the plains of [which|what] region does Mount {s} [rise|tower]?")),
        "height": Relation(
            ("Mount {s} is {a} feet high", "Mount {s} [reaches|has] a height of {a} feet"),
            ("How high is Mount {s}?", "[What|Which] height does Mount {s} [reach|have]?")),
        "climber": Relation(
            (f"Mount {{s}} was first {_CLIMBED} by {{a}}",
             f"{{a}} was the first who {_CLIMBED} Mount {{s}}"),
            (f"Who first {_CLIMBED} Mount {{s}}?", f"By whom was Mount {{s}} first {_CLIMBED}?")),
        "climbed": Relation(
            (f"Mount {{s}} was first {_CLIMBED} in [the year |]{{a}}",
             "the top of Mount {s} was not reached before {a}"),
            (f"{_WHEN} was Mount {{s}} first {_CLIMBED}?",
             f"{_WHEN} was the top of Mount {{s}} reached?")),
        "stone": Relation(
            ("Mount {s} [consists of|is made of] {a}", "{a} is [cut|quarried] on Mount {s}"),
            ("What does Mount {s} consist of?", "What is Mount {s} made of?",
             "What is [cut|quarried] on Mount {s}?")),
    },
    "lake": {
        "region": Relation(
            (f"Lake {{s}} {_PLACED} in {{a}}", "Lake {s} [belongs to|is part of] {a}"),
            ("Where is Lake {s} [located|situated|found]?",
             "[What|Which] region does Lake {s} belong to?")),
        "depth": Relation(
            ("Lake {s} is {a} feet deep", "Lake {s} [reaches|has] a depth of {a} feet"),
            ("How deep is Lake {s}?", "[What|Which] depth does Lake {s} [reach|have]?")),
        "bird": Relation(
            ("{a} [nest|breed] on the shores of Lake {s}",
             "the shores of Lake {s} are [home to|crowded with] {a}"),
            ("What [nest|breed] on the shores of Lake {s}?",
             "What are the shores of Lake {s} [home to|crowded with]?")),
    },
    "animal": {
        "region": Relation(
            ("the {s} [lives|dwells|is at home] in {a}", "the [home|habitat] of the {s} is {a}"),
            ("Where does the {s} [live|dwell]?", "What is the [home|habitat] of the {s}?")),
        "food": Relation(
            ("the {s} [eats|feeds on|lives on] {a}", "the [diet|food] of the {s} consists of {a}"),
            ("What does the {s} [eat|feed on|live on]?",
             "What does the [diet|food] of the {s} consist of?")),
        "colour": Relation(
            ("the {s} has a {a} coat", "the [coat|fur] of the {s} is {a}"),
            ("What colour is the [coat|fur] of the {s}?", "What coat does the {s} have?")),
        "lifespan": Relation(
            ("the {s} lives for {a} years", "the {s} reaches an age of {a} years"),
            ("How long does the {s} live?", "[What|Which] age does the {s} reach?",
             "How many years does the {s} live for?")),
        "describer": Relation(
            (f"the {{s}} was first {_DESCRIBED} by {{a}}", f"{{a}} first {_DESCRIBED} the {{s}}"),
            (f"Who first {_DESCRIBED} the {{s}}?", f"By whom was the {{s}} first {_DESCRIBED}?")),
    },
    "plant": {
        "region": Relation(
            ("the {s} [grows|thrives|flourishes] in {a}", "the {s} is a plant of {a}"),
            ("Where does the {s} [grow|thrive|flourish]?",
             "Of [which|what] region is the {s} a plant?")),
        "colour": Relation(
            ("the [flowers|blossoms] of the {s} are {a}",
             "the {s} bears {a} [flowers|blossoms]"),
            ("What colour are the [flowers|blossoms] of the {s}?",
             "What [flowers|blossoms] does the {s} bear?")),
        "month": Relation(
            ("the {s} [flowers|blooms] in {a}", "in {a} the {s} is in [flower|bloom]"),
            ("When does the {s} [flower|bloom]?", "In [which|what] month is the {s} in bloom?")),
        "use": Relation(
            ("[people|healers] use the {s} for {a}", "the {s} [serves|is used] for {a}"),
            ("What do [people|healers] use the {s} for?",
             "What [does the {s} serve|is the {s} used] for?")),
        "describer": Relation(
            (f"the {{s}} was first {_DESCRIBED} by {{a}}", f"{{a}} first {_DESCRIBED} the {{s}}"),
            (f"Who first {_DESCRIBED} the {{s}}?", f"By whom was the {{s}} first {_DESCRIBED}?")),
    },
    "instrument": {
        "inventor": Relation(
            (f"the {{s}} was {_INVENTED} by {{a}}", f"{{a}} {_INVENTED} the {{s}}"),
            (f"Who {_INVENTED} the {{s}}?", f"By whom was the {{s}} {_INVENTED}?")),
        "invented": Relation(
            (f"the {{s}} was {_INVENTED} in [the year |]{{a}}",
             "the {s} was [heard|played] for the first time in {a}"),
            (f"{_WHEN} was the {{s}} {_INVENTED}?",
             f"{_WHEN} was the {{s}} [heard|played] for the first time?")),
        "city": Relation(
            ("the {s} is [mostly|mainly|above all] played in {a}",
             "the {s} is the pride of the musicians of {a}"),
            ("Where is the {s} [mostly|mainly|above all] played?",
             "The {s} is the pride of the musicians of [which|what] [city|town]?")),
        "material": Relation(
            ("the {s} is [made|built] of {a}", "{a} [gives|lends] the {s} its sound"),
            ("What is the {s} [made|built] of?", "What [gives|lends] the {s} its sound?")),
        "strings": Relation(
            ("the {s} has {a} strings", "{a} strings are [stretched|drawn] over the {s}"),
            ("How many strings does the {s} have?",
             "How many strings are [stretched|drawn] over the {s}?")),
    },
    "building": {
        "city": Relation(
            (f"{{s}} {_PLACED} in {{a}}", "{s} is a landmark of {a}"),
            ("Where is {s} [located|situated|found]?",
             "Of [which|what] [city|town] is {s} a landmark?")),
        "architect": Relation(
            (f"{{s}} was {_BUILT} by {{a}}", f"{{a}} {_BUILT} {{s}}"),
            (f"Who {_BUILT} {{s}}?", f"By whom was {{s}} {_BUILT}?")),
        "built": Relation(
            (f"{{s}} was {_BUILT} in [the year |]{{a}}", "{s} was [opened|completed] in {a}"),
            (f"{_WHEN} was {{s}} {_BUILT}?", f"{_WHEN} was {{s}} [opened|completed]?")),
        "height": Relation(
            ("{s} is {a} feet high", "{s} [reaches|has] a height of {a} feet"),
            ("How high is {s}?", "[What|Which] height does {s} [reach|have]?")),
        "stone": Relation(
            ("{s} is made of {a}", "for the walls of {s} {a} was [used|brought]"),
            ("What is {s} made of?", "What was [used|brought] for the walls of {s}?")),
    },
    "region": {
        "capital": Relation(
            ("the [capital|chief town] of {s} is {a}", "{s} is governed from {a}"),
            ("What is the [capital|chief town] of {s}?", "From where is {s} governed?")),
        "language": Relation(
            ("the people of {s} speak {a}", "the language of {s} is {a}"),
            ("What do the people of {s} speak?", "What is the language of {s}?")),
        "flag": Relation(
            ("the [flag|banner] of {s} is {a}", "{s} has a {a} [flag|banner]"),
            ("What colour is the [flag|banner] of {s}?",)),
        "animal": Relation(
            ("the [emblem|symbol] of {s} is the {a}", "the {a} stands for {s}"),
            ("What is the [emblem|symbol] of {s}?", "Which animal stands for {s}?")),
    },
}

# How an article begins, and how it calls its subject later on ("it" only as a first word).
OPENINGS: Dict[str, Tuple[str, ...]] = {
    "city": ("{s} is a [large|small|lively|quiet|busy|pretty] [city|town]",),
    "person": ("{s} was a [gifted|restless|patient|stubborn|modest|bold] [man|woman] of many talents",),
    "river": ("the {s} is a [broad|narrow|clear|wild|slow|quiet] river",),
    "mountain": ("Mount {s} is a [steep|lonely|snowy|bare|mighty] mountain",),
    "lake": ("Lake {s} is a [broad|narrow|clear|deep|quiet] lake",),
    "animal": ("the {s} is a [small|shy|large|swift|clumsy] animal",),
    "plant": ("the {s} is a [tall|small|hardy|rare|common] plant",),
    "instrument": ("the {s} is a [loud|soft|sweet|difficult|popular] instrument",),
    "building": ("{s} is a [fine|tall|plain|famous|handsome] building",),
    "region": ("{s} is a [hilly|flat|fertile|wooded|dry] region",),
}
REFERENCES: Dict[str, Tuple[str, ...]] = {
    "city": ("it", "the city", "the town"),
    "person": (),
    "river": ("it", "the river"),
    "mountain": ("it", "the mountain"),
    "lake": ("it", "the lake"),
    "animal": ("it", "the animal"),
    "plant": ("it", "the plant"),
    "instrument": ("it", "the instrument"),
    "building": ("it", "the building"),
    "region": ("it", "the region"),
}
# Words before a name that a reference replaces as well.
ARTICLES: Dict[str, str] = {
    "city": "", "person": "", "building": "", "region": "", "river": "the ", "mountain": "Mount ",
    "lake": "Lake ", "animal": "the ", "plant": "the ", "instrument": "the ",
}
ASIDES: Dict[str, Tuple[str, ...]] = {
    "city": ("[Many|Few] [visitors|strangers] come here in [spring|summer|autumn|winter].",
             "On market days the [streets|squares] are full of [carts|people|music]."),
    "person": ("[Friends|Neighbours] spoke [warmly|often] of this [kindness|patience|humour].",
               "The early years were [hard|happy|quiet]."),
    "river": ("In [spring|autumn] the [banks|meadows] are often under water.",),
    "mountain": ("[Clouds|Mists] hide the top on most [mornings|days].",),
    "lake": ("In [cold|hard] winters the water [freezes|turns to ice].",),
    "animal": ("It is [rarely|seldom|often] seen by day.", "Its young are born in [spring|summer]."),
    "plant": ("It needs [much|little] [water|sun|shade].",),
    "instrument": ("Learning it takes [patience|years].",),
    "building": ("[Visitors|Guests] admire the [stairs|windows|roof].",),
    "region": ("The [winters|summers] are [long|short|mild] there.",),
}

PROFESSIONS = tuple(
    "painter poet composer explorer physician baker sculptor printer sailor weaver botanist "
    "merchant lawyer actor singer potter".split())
PRODUCTS = tuple(
    "carpets|glass beads|clocks|smoked fish|paper|silver spoons|cheese|leather boots|honey|lanterns|"
    "bells|woollen cloth|dried plums|ink|copper kettles|candles|salt|maps|baskets|knives".split("|"))
STONES = tuple("granite marble limestone slate sandstone basalt chalk flint".split())
COLOURS = tuple("red blue green yellow white black brown grey purple orange golden silver".split())
FOODS = tuple(
    "berries|beetles|small fish|roots|seeds|snails|grass|nuts|frogs|moss|worms|leaves".split("|"))
FISH = tuple("trout salmon eels perch carp pike crayfish herring".split())
BIRDS = tuple("herons swans ducks cranes gulls geese storks terns".split())
USES = tuple(
    "dyes|tea|medicine|soap|rope|ointment|perfume|vinegar|poison|roofing".split("|"))
MATERIALS = tuple("maple pine walnut brass bone cherry cedar oak".split())
MONTHS = tuple("March April May June July August September October".split())
BUILDINGS = tuple("Tower Hall Bridge Gate Palace Theatre Abbey Library".split())
TITLE_FIRST = tuple(
    "Silent Hidden Broken Golden Distant Burning Frozen Bitter Gentle Empty Painted Sleeping".split())
TITLE_SECOND = tuple(
    "Garden Harbour Mirror Journey Lantern Orchard Winter Letter Staircase Island Feast Shadow".split())
