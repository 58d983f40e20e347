"""Questions from templates of our own. They are short, name the columns wanted, and use the domain's own nouns.

Basic and Union quote the titles of their tables; Reverse-Union names neither its anchor nor its sources.
"""

from collections.abc import Sequence

from data_gen.drafts import rank

BASIC = (
    "List all {nouns} in {title}{where}. Columns: {columns}.",
    "Which {nouns} are in {title}{where}? Give {columns}.",
    "Make a table of every {noun} in {title}{where}: {columns}.",
    "Find each {noun} listed in {title}{where}. Answer with {columns}.",
    "For all {nouns} in {title}{where}, give {columns}.",
    "Collect the {nouns} of {title}{where}. Columns wanted: {columns}.",
    "What are the {nouns} in {title}{where}? Table: {columns}.",
    "Go through {title} and note each {noun}{where}: {columns}.",
)
UNION = (
    "Which {nouns} are in both {a}{where_a} and {b}{where_b}? Columns: {columns}.",
    "List every {noun} that is in {a}{where_a} and also in {b}{where_b}. Give {columns}.",
    "Find the {nouns} common to {a}{where_a} and {b}{where_b}. Columns wanted: {columns}.",
    "Compare {a}{where_a} with {b}{where_b}: which {nouns} are in both? Table: {columns}.",
    "Each {noun} of {a}{where_a} that {b}{where_b} lists too: give {columns}.",
    "Make a table of the {nouns} shared by {a}{where_a} and {b}{where_b}: {columns}.",
)
REVERSE_UNION = (
    "A first list has a {noun} with {clues_a}; a second list has the same {noun} with {clues_b}. "
    "Which {nouns} in both lists share that {pivot}? Columns: {columns}.",
    "One {noun} is in two lists: {clues_a} in the first, {clues_b} in the second. "
    "List all {nouns} of both lists with the same {pivot}. Give {columns}.",
    "Find the {noun} with {clues_a} in a first list and {clues_b} in a second list. "
    "Then give every {noun} of both lists whose {pivot} is the same: {columns}.",
    "Some {noun} has {clues_a} in one list (the first) and {clues_b} in another (the second). "
    "Who or what else is in both with an equal {pivot}? Include it. Columns: {columns}.",
    "Two lists share a {noun}: the first gives {clues_a}, the second {clues_b}. "
    "Make a table of the {nouns} in both that have its {pivot}: {columns}.",
    "Take the {noun} that has {clues_a} in a first list and {clues_b} in a second. "
    "Which {nouns} are in both lists and have the same {pivot}? Table: {columns}.",
)

# Domain of the key column -> singular and plural; a type stands in for a domain that is not here.
NOUNS: dict[str, tuple[str, str]] = {
    "actor": ("actor", "actors"),
    "airport": ("airport", "airports"),
    "album": ("album", "albums"),
    "artist": ("artist", "artists"),
    "athlete": ("athlete", "athletes"),
    "award": ("award", "awards"),
    "beauty queen": ("contestant", "contestants"),
    "book": ("book", "books"),
    "broadcaster": ("broadcaster", "broadcasters"),
    "building": ("building", "buildings"),
    "club": ("team", "teams"),
    "coach": ("coach", "coaches"),
    "company": ("company", "companies"),
    "competition": ("competition", "competitions"),
    "country": ("country", "countries"),
    "creature": ("creature", "creatures"),
    "event": ("event", "events"),
    "film": ("film", "films"),
    "horse": ("horse", "horses"),
    "league": ("league", "leagues"),
    "mountain": ("mountain", "mountains"),
    "musician": ("musician", "musicians"),
    "officer": ("officer", "officers"),
    "organisation": ("organisation", "organisations"),
    "park": ("park", "parks"),
    "party": ("party", "parties"),
    "person": ("person", "people"),
    "place": ("place", "places"),
    "politician": ("politician", "politicians"),
    "region": ("region", "regions"),
    "river": ("river", "rivers"),
    "school": ("school", "schools"),
    "scientist": ("scientist", "scientists"),
    "settlement": ("town or city", "towns and cities"),
    "ship": ("ship", "ships"),
    "song": ("song", "songs"),
    "structure": ("structure", "structures"),
    "telescope": ("telescope", "telescopes"),
    "television programme": ("programme or episode", "programmes or episodes"),
    "vehicle": ("vehicle", "vehicles"),
    "venue": ("venue", "venues"),
    "video game": ("video game", "video games"),
    "work": ("title", "titles"),
    "writer": ("writer", "writers"),
}
_FALLBACK = ("entry", "entries")


def nouns(kind: str, domain: str) -> tuple[str, str]:
    """Returns what to call one and several entities of a key column."""
    return NOUNS.get(domain) or NOUNS.get(kind) or _FALLBACK


def basic_question(
    kind: str, domain: str, title: str, condition: tuple[str, str] | None, columns: Sequence[str], seed: int
) -> str:
    """`title` comes quoted; `condition` is `(relation, text)`, as in ("year", "1980 to 1989")."""
    noun, plural = nouns(kind, domain)
    where = f" whose {condition[0]} is {condition[1]}" if condition else ""
    template = BASIC[rank(seed, "basic", title, where, tuple(columns)) % len(BASIC)]
    return template.format(noun=noun, nouns=plural, title=title, where=where, columns=" | ".join(columns))


def union_question(
    kind: str,
    domain: str,
    titles: Sequence[str],
    conditions: Sequence[tuple[str, str] | None],
    columns: Sequence[str],
    seed: int,
) -> str:
    """`titles` come quoted; each has its condition behind it."""
    noun, plural = nouns(kind, domain)
    where_a, where_b = (f" (only {c[0]} {c[1]})" if c else "" for c in conditions)
    template = UNION[rank(seed, "union", *titles, where_a, where_b, tuple(columns)) % len(UNION)]
    return template.format(
        noun=noun, nouns=plural, a=titles[0], b=titles[1], where_a=where_a, where_b=where_b, columns=" | ".join(columns)
    )


def reverse_union_question(
    kind: str,
    domain: str,
    clues: Sequence[Sequence[tuple[str, str]]],
    pivot: str,
    columns: Sequence[str],
    seed: int,
) -> str:
    """`clues` are, for each list, `(relation, text)` of the anchor."""
    noun, plural = nouns(kind, domain)
    clues_a, clues_b = (" and ".join(f"{relation} {text}" for relation, text in own) for own in clues)
    template = REVERSE_UNION[rank(seed, "reverse", clues_a, clues_b, pivot, tuple(columns)) % len(REVERSE_UNION)]
    if noun[0] in "aeiou":
        template = template.replace(" a {noun}", " an {noun}")
    return template.format(
        noun=noun, nouns=plural, clues_a=clues_a, clues_b=clues_b, pivot=pivot, columns=" | ".join(columns)
    )
