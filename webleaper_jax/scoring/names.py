"""When two texts name the same person, organisation, place or work, near enough to be exact.

Each comparison returns a number in [0, 1]; from `SAME` on the two count as one entity. Forms that people use for one
entity score from 0.85 (a title without its subtitle) to 1; anything else scores 0, or 0.5 where one text may be
the other and need not be (`Ken Griffey` and `Ken Griffey Jr.`). A family name alone names nobody.

Callers compare only texts that share an index word: any pair that scores above 0 shares one.
"""

import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rapidfuzz.distance import OSA

from webleaper_jax.scoring.countries import is_region, region_name
from webleaper_jax.scoring.normalize import fold, normalize, strip_notes, word_set

SAME = 0.8

_HONORIFICS = word_set(
    "sir dame dr mr mrs ms miss prof professor rev reverend hon lord lady president pope gen general col colonel capt "
    "captain maj major lt lieutenant sgt adm admiral king queen emperor empress saint st baron baroness sultan justice "
    "senator sen governor gov bishop archbishop cardinal"
)
_POST_NOMINALS = word_set("phd md obe cbe mbe kbe dbe kcb qc kc esq frs dsc bsc ma mp vc rn")
_GENERATION = {"jr": "jr", "junior": "jr", "sr": "sr", "senior": "sr"} | {
    numeral: numeral for numeral in word_set("i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi")
}
_PARTICLES = word_set("de da do dos du van von der den la le el al bin ibn y e di del della af zu of the het")
_LEGAL = word_set("inc incorporated ltd limited corp corporation co company llc plc gmbh ag sa spa nv bv")
_CLUB = word_set("fc afc cf sc ac bc fk sk if bk cd ud ssc as rc sv vfl vfb tsv fsv bsc club")
_LITTLE = word_set("the a an of and in on at for to de la le les der die das el los las il l d und et y")
_ARTICLES = word_set("the a an le la les der die das el los las il")
_ABBREVIATIONS = {
    "mt": "mount",
    "st": "saint",
    "ste": "saint",
    "ft": "fort",
    "univ": "university",
    "intl": "international",
}
_ABBREVIATIONS |= {"dept": "department", "assn": "association", "assoc": "association", "bros": "brothers"}
_NUMERALS = {"ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9"}
_PERSON_SPLIT = re.compile(r"\s*(?:;|/|&|\n|\band\b|\bor\b|\bwith\b)\s*")
_BRACKETED = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]")
_NICKNAME = re.compile('\\s*["“”„«»]([^"“”„«»]+)["“”„«»]\\s*')


def _without_brackets(text: str) -> tuple[str, str]:
    """Splits a text into what stands outside its brackets and, in normal form, inside; no text is all brackets."""
    outside = _BRACKETED.sub(" ", text).strip()
    inside = normalize(" ".join(_BRACKETED.findall(text)))
    return (outside, inside) if outside else (text, "")


def _brackets_agree(a: str, b: str) -> float:
    """1 where one side has no note in brackets or both have the same, 0.5 where they may speak of different things."""
    return 1.0 if not a or not b or a == b else 0.5


def _close(a: str, b: str, length: int) -> bool:
    """Whether two words are one but for one typing slip, in words of at least `length` letters without digits."""
    if min(len(a), len(b)) < length or not (a.isalpha() and b.isalpha()):
        return False
    return OSA.distance(a, b, score_cutoff=1) <= 1


def _squash(words: Iterable[str]) -> str:
    return "".join(words)


# --------------------------------------------------------------------------------------------------------- persons


class _Person(NamedTuple):
    """A name read one way: given names and particles (initials as single letters), family name, generation, note."""

    given: tuple[str, ...]
    family: str
    generation: str
    note: str


def person(a: str, b: str) -> float:
    """Compares names of persons, or of several persons in one text (all of them must agree, in any order)."""
    crowd_a, crowd_b = _crowd(a), _crowd(b)
    if len(crowd_a) != len(crowd_b):
        return 0.0
    if len(crowd_a) == 1:
        return _one_person(a, b)
    best = [[_one_person(x, y) for y in crowd_b] for x in crowd_a]
    return min(min(max(row) for row in best), min(max(column) for column in zip(*best, strict=True)))


@lru_cache(maxsize=1 << 14)
def _crowd(text: str) -> tuple[str, ...]:
    """The persons that a text names: split at `and`, `&`, `;`, `/`, and at commas between full names."""
    names = [name for name in _PERSON_SPLIT.split(text) if normalize(name)]
    parts = text.split(",")
    if len(names) == 1 < len(parts) and all(len(part.split()) > 1 for part in parts):
        names = [part.strip() for part in parts]
    return tuple(dict.fromkeys(names)) if len(names) > 1 else (text,)


def _one_person(a: str, b: str) -> float:
    return max((_compare_persons(x, y) for x, y in itertools.product(_readings(a), _readings(b))), default=0.0)


@lru_cache(maxsize=1 << 15)
def _readings(text: str) -> tuple[_Person, ...]:
    """The ways to read one person's name: with and without a nickname in quotes, umlauts written out or not."""
    outside, note = _without_brackets(strip_notes(text))
    texts = [outside]
    if nickname := _NICKNAME.search(outside):
        before, after = outside[: nickname.start()], outside[nickname.end() :]
        texts = [f"{before} {after}", f"{nickname[1]} {after}", f"{before} {nickname[1]} {after}"]
    texts += [written for t in texts if (written := _write_out_umlauts(t)) != t]
    return tuple(dict.fromkeys(read for t in texts if (read := _read_person(t, note))))


def _write_out_umlauts(text: str) -> str:
    return re.sub("[äöüÄÖÜ]", lambda m: f"{m.group()}e".translate(str.maketrans("äöüÄÖÜ", "aouAOU")), text)


def _read_person(text: str, note: str) -> _Person | None:
    generation = ""
    head, comma, tail = text.partition(",")
    if comma and (first := normalize(tail.partition(",")[0])):
        if first in _GENERATION or all(word in _POST_NOMINALS for word in first.split()):
            text, generation = head, _GENERATION.get(first, "")
        else:
            text = f"{tail} {head}"
    words = _name_words(text)
    while len(words) > 1 and words[0] in _HONORIFICS:
        words = words[1:]
    while len(words) > 1 and words[-1] in _POST_NOMINALS:
        words = words[:-1]
    if len(words) > 1 and words[-1] in _GENERATION:
        words, generation = words[:-1], _GENERATION[words[-1]]
    return _Person(tuple(words[:-1]), words[-1], generation, note) if words else None


def _name_words(text: str) -> list[str]:
    """The words of a name in normal form; `J.M.`, `J. M.` and `JM` become single letters."""
    shouting = text.upper() == text
    words: list[str] = []
    for raw in re.split(r"[\s-]+", re.sub(r"(?<=\w\.)(?=\w)", " ", text)):
        word = "het" if fold(raw) == "'t" else normalize(raw).replace(" ", "")
        initials = not shouting and len(word) in (2, 3) and raw.isupper() and raw.isalpha()
        words += list(word) if initials else [word] if word else []
    return words


def _compare_persons(a: _Person, b: _Person) -> float:
    if a.generation != b.generation:
        if a.generation and b.generation:
            return 0.0
        return 0.5 * _compare_persons(a._replace(generation=""), b._replace(generation=""))
    return _compare_names((*a.given, a.family), (*b.given, b.family)) * _brackets_agree(a.note, b.note)


def _compare_names(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    if a == b:
        return 1.0
    if _squash(a) == _squash(b):
        return 0.95
    if len(a) == len(b) and sorted(a) == sorted(b):
        return 0.9  # family name first
    if len(a) == 1 or len(b) == 1:
        return 0.0
    if len(a) > len(b):
        a, b = b, a
    family = _same_word(a[-1], b[-1])
    if not family and a[:-1] == b[:-1] and len(a[0]) > 2 and a[-1][0] == b[-1][0] and _close(a[-1], b[-1], 6):
        return 0.8
    return 0.0 if not family else family * _compare_given(a[:-1], b[:-1])


def _compare_given(short: tuple[str, ...], long: tuple[str, ...]) -> float:
    """Given names agree when they agree one by one (`J.` with `John`); the last ones may be left out of one side."""
    score = 1.0
    for x, y in zip(short, long, strict=False):
        if len(x) == 1 or len(y) == 1:
            agree = 0.95 if x[0] == y[0] else 0.0
            agree = 1.0 if x == y else agree
        else:
            agree = _same_word(x, y)
        score = min(score, agree)
    if score == 0.0 and (core := _without_particles(short)) and core != short:
        return 0.95 * _compare_given(core, long)
    if score == 0.0 and (core := _without_particles(long)) and core != long:
        return 0.95 * _compare_given(*sorted((short, core), key=len))
    if len(short) < len(long):
        left_out = [word for word in long[len(short) :] if word not in _PARTICLES]
        # More than two middle names, or a name that comes again, are the names of other people.
        score *= 0.95 if not left_out else 0.9 if len(left_out) <= 2 and not {*left_out} & {*short} else 0.0
    return score


def _without_particles(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _PARTICLES)


def _same_word(a: str, b: str) -> float:
    """1 for the same word, 0.95 for two spellings of one Slavic or Greek name (Dmitri, Dmitry), else 0."""
    if a == b:
        return 1.0
    return 0.95 if len(a) > 3 and len(b) > 3 and _spelling(a) == _spelling(b) else 0.0


def _spelling(word: str) -> str:
    word = word.replace("y", "i").replace("ks", "x").replace("ph", "f")
    return re.sub(r"i{2,}", "i", re.sub(r"ei$", "i", word))


# ------------------------------------------------------------------------------- organisations, places, works, things


class _Title(NamedTuple):
    """A name of a thing: main words, words that may be left out, subtitle or qualifiers, note in brackets."""

    words: tuple[str, ...]
    affixes: frozenset[str]
    rest: frozenset[str]
    note: str


def organisation(a: str, b: str) -> float:
    """Compares names of organisations: legal forms and club affixes may be left out, but not exchanged."""
    return max(_compare_titles(_organisation(a), _organisation(b)), _acronym(a, b), _acronym(b, a))


def place(a: str, b: str) -> float:
    """Compares names of places: `Paris` and `Paris, France` agree, `Paris, Texas` and `Paris, France` do not.

    Only countries, states and the like may be left out: `Paris, London` is a list, not the Paris of London.
    """
    x, y = _place(a), _place(b)
    return _compare_titles(x, y) if all(is_region(part) for part in x.rest ^ y.rest) else 0.0


def work(a: str, b: str) -> float:
    """Compares titles: the first article and the subtitle may be left out, numbers (Rocky II) may not."""
    return _compare_titles(_work(a), _work(b))


def event(a: str, b: str) -> float:
    """Compares names of events, whose words may come in any order (`1998 World Cup`, `World Cup 1998`)."""
    x, y = _work(a), _work(b)
    return 0.9 if sorted(x.words) == sorted(y.words) and (x.rest, x.note) == (y.rest, y.note) else _compare_titles(x, y)


def _compare_titles(a: _Title, b: _Title) -> float:
    score = _compare_words(a.words, b.words)
    if a.affixes != b.affixes:
        score *= 0.95 if a.affixes <= b.affixes or b.affixes <= a.affixes else 0.5
    if a.rest != b.rest:
        score *= 0.9 if a.rest <= b.rest or b.rest <= a.rest else 0.0
    return score * _brackets_agree(a.note, b.note)


def _compare_words(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    if a == b:
        return 1.0
    if _squash(a) == _squash(b):
        return 0.95
    kept_a, kept_b = ([w for w in words if w not in _LITTLE] for words in (a, b))
    if kept_a == kept_b and kept_a:
        return 0.9
    if len(kept_a) != len(kept_b) or len(kept_a) < 2:
        return 0.0
    if sorted(kept_a) == sorted(kept_b):
        return 0.7
    different = [(x, y) for x, y in zip(kept_a, kept_b, strict=True) if x != y]
    return 0.85 if len(different) == 1 and _close(*different[0], 7) else 0.0


def _words(text: str) -> tuple[str, ...]:
    return tuple(_ABBREVIATIONS.get(word, word) for word in normalize(text).split())


def _drop(words: tuple[str, ...], affixes: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Takes the affixes out of the words, unless nothing would be left."""
    kept = tuple(word for word in words if word not in affixes)
    return (kept, frozenset(words) & affixes) if kept else (words, frozenset())


@lru_cache(maxsize=1 << 15)
def _organisation(text: str) -> _Title:
    outside, note = _without_brackets(strip_notes(text))
    words = _words(outside)
    words = words[1:] if len(words) > 1 and words[0] == "the" else words
    words, _ = _drop(words, _LEGAL)
    words, club = _drop(words, _CLUB)
    return _Title(words, club, frozenset(), note)


def _acronym(short: str, long: str) -> float:
    """0.9 where `short` is written in capitals and spells the first letters of `long` (NASA), else 0."""
    letters = short.replace(".", "").strip()
    words = [w for w in normalize(_without_brackets(long)[0]).split() if w not in _LITTLE]
    if not (3 <= len(letters) == len(words) and letters.isalpha() and letters.isupper()):
        return 0.0
    return 0.9 if letters.lower() == "".join(word[0] for word in words) else 0.0


@lru_cache(maxsize=1 << 15)
def _place(text: str) -> _Title:
    outside, note = _without_brackets(strip_notes(text))
    head, _, tail = outside.partition(",")
    words = _words(head)
    words = words[1:] if len(words) > 1 and words[0] == "the" else words
    words, affixes = _drop(words, frozenset({"mount"}))
    regions = frozenset(region_name(part) for part in tail.split(",") if normalize(part))
    return _Title(words, affixes, regions, note)


@lru_cache(maxsize=1 << 15)
def _work(text: str) -> _Title:
    outside, note = _without_brackets(strip_notes(text))
    outside = re.sub(r"^(.*), (the|a|an)$", r"\2 \1", outside.strip(" \"“”'"), flags=re.IGNORECASE)
    head, _, tail = re.sub(r"\s*(?:: |; or,? |\s[–—-]\s)\s*", "\ue010", outside, count=1).partition("\ue010")
    words = _words(head)
    words = words[1:] if len(words) > 1 and words[0] in _ARTICLES else words
    words = words[:1] + tuple(_NUMERALS.get(word, word) for word in words[1:])
    return _Title(words, frozenset(), frozenset({normalize(tail)} - {""}), note)


# ------------------------------------------------------------------------------------------------------------ index


@lru_cache(maxsize=1 << 15)
def person_index(text: str) -> frozenset[str]:
    """Words under which to look a person up: two texts that `person` compares above 0 share one of them."""
    words = set()
    for reading in (reading for name in _crowd(text) for reading in _readings(name)):
        full = (*reading.given, reading.family)
        near_family = f"{' '.join(reading.given)} {reading.family[0]}"
        words |= {_spelling(reading.family), _squash(full), _squash(sorted(full)), near_family}
    return frozenset(words)


@lru_cache(maxsize=1 << 15)
def title_index(text: str) -> frozenset[str]:
    """Words under which to look up an organisation, place, work or event, as `person_index`."""
    outside, _ = _without_brackets(strip_notes(text))
    words = {word for title in (_organisation(text), _place(text), _work(text)) for word in title.words}
    words -= _LITTLE
    words |= {_squash(title.words) for title in (_organisation(text), _place(text), _work(text))}
    words.add("".join(word[0] for word in normalize(outside).split() if word not in _LITTLE))
    words.add(fold(outside).replace(".", "").strip())
    return frozenset(words)
