"""Names of countries: ISO 3166 (through pycountry), everyday and former names, IOC codes, adjectives of nationality.

`country_code("Holland") == country_code("Dutch") == "NL"`. Parts of a country that have teams of their own (England,
Scotland) and states that are no more (East Germany, the Soviet Union) have codes of their own here.
"""

import re
from functools import cache, lru_cache

import pycountry

from webleaper_jax.scoring.normalize import normalize, strip_notes, word_set

# code: other names, IOC and FIFA codes (in capitals), adjectives
_ALIASES = """
AD: AND, Andorran; AE: UAE, Emirates, Emirati; AF: Afghan; AG: ANT, Antiguan; AL: Albanian; AM: Armenian
AO: ANG, Angolan; AR: Argentine, Argentinian, Argentinean; AT: Austrian; AU: Australian; AZ: Azerbaijani
BA: Bosnia, Bosnia-Herzegovina, BIH, Bosnian; BB: BAR, Barbadian; BD: BAN, Bangladeshi; BE: Belgian
BF: BUR, Burkinabe; BG: BUL, Bulgarian; BH: BRN, Bahraini; BI: Burundian; BJ: Beninese; BN: BRU, Brunei, Bruneian
BO: Bolivia, Bolivian; BR: Brazilian; BS: BAH, Bahamas, The Bahamas, Bahamian; BT: BHU, Bhutanese
BW: BOT, Botswanan, Motswana; BY: Belarusian, Belarussian; BZ: BIZ, Belizean; CA: Canadian
CD: DR Congo, Democratic Republic of the Congo, Democratic Republic of Congo, Congo Kinshasa, Zaire, ZAI, DRC
CF: Central African; CG: Congo Brazzaville, Republic of the Congo, Congo, Congolese; CH: SUI, Swiss; CL: CHI, Chilean
CM: Cameroonian; CI: Ivory Coast, Ivorian; CN: PRC, Peoples Republic of China, Mainland China, Chinese; CO: Colombian
CR: CRC, Costa Rican; CU: Cuban; CV: Cape Verde, Cape Verdean; CY: Cypriot; CZ: Czech Republic, Czech; DE: GER, German
DJ: Djiboutian; DK: DEN, Danish, Dane; DM: Dominica; DO: Dominican; DZ: ALG, Algerian; EC: Ecuadorian, Ecuadorean
EE: Estonian; EG: Egyptian; ER: Eritrean; ES: Spanish, Spaniard; ET: Ethiopian; FI: Finnish, Finn; FJ: FIJ, Fijian
FM: Micronesia; FR: French; GA: Gabonese; GB: UK, Great Britain, Britain, GBR, British, Briton; GD: GRN, Grenadian
GE: Georgian; GH: Ghanaian; GM: GAM, Gambia, The Gambia, Gambian; GN: GUI, Guinean; GQ: GEQ; GR: GRE, Greek
GT: GUA, Guatemalan; GW: GBS; GY: Guyanese; HK: HKG; HN: HON, Honduran; HR: CRO, Croatian, Croat; HT: HAI, Haitian
HU: Hungarian; ID: INA, Indonesian; IE: Republic of Ireland, Eire, Irish; IL: Israeli; IN: Indian; IQ: Iraqi
IR: Iran, IRI, Iranian, Persia; IS: Icelandic; IT: Italian; JM: Jamaican; JO: Jordanian; JP: Japanese; KE: Kenyan
KG: Kyrgyz; KH: CAM, Cambodian; KM: Comorian; KN: SKN; KP: North Korea, North Korean; KR: South Korea, South Korean
KW: KUW, Kuwaiti; KZ: Kazakh, Kazakhstani; LA: Laos, Lao, Laotian; LB: LIB, Lebanese; LK: SRI, Sri Lankan, Ceylon
LR: Liberian; LS: LES; LT: Lithuanian; LU: Luxembourgish, Luxembourger; LV: LAT, Latvian; LY: LBA, Libyan
MA: Moroccan; MC: MON, Monaco, Monegasque; MD: Moldova, Moldovan; ME: Montenegrin; MG: MAD, Malagasy; MH: Marshallese
MK: Macedonia, FYROM, FYR Macedonia, Macedonian; ML: Malian; MM: Burma, MYA, Burmese; MN: MGL, Mongolian; MO: Macau
MR: MTN, Mauritanian; MT: Maltese; MU: MRI, Mauritian; MV: Maldivian; MW: MAW, Malawian; MX: Mexican
MY: MAS, Malaysian; MZ: Mozambican; NA: Namibian; NE: NIG; NG: NGR, Nigerian; NI: NCA, Nicaraguan
NL: Holland, NED, Dutch, The Netherlands; NO: Norwegian; NP: NEP, Nepalese, Nepali; NZ: New Zealander; OM: OMA, Omani
PA: Panamanian; PE: Peruvian; PG: Papuan; PH: PHI, Filipino, The Philippines; PK: Pakistani; PL: Polish, Pole
PR: PUR, Puerto Rican; PS: Palestine, Palestinian; PT: POR, Portuguese; PY: PAR, Paraguayan; QA: Qatari; RO: Romanian
RS: Serbian, Serb; RU: Russia, Russian; RW: Rwandan; SA: KSA, Saudi, Saudi Arabian; SB: SOL; SC: SEY
SD: SUD, Sudanese; SE: Swedish, Swede; SG: SIN, Singaporean; SI: SLO, Slovene, Slovenian; SK: Slovak, Slovakian
SL: Sierra Leonean; SM: Sammarinese; SN: Senegalese; SO: Somali; SR: Surinamese; SS: South Sudanese; ST: Sao Tome
SV: ESA, Salvadoran; SY: Syria, Syrian; SZ: Swaziland, Swazi; TD: CHA, Chadian; TG: TOG, Togolese; TH: Thai; TJ: Tajik
TL: East Timor, Timorese; TM: Turkmen; TN: Tunisian; TO: TGA, Tongan; TR: Turkey, Turkish, Turk
TT: TRI, Trinidad, Trinidadian; TV: Tuvaluan; TW: Taiwan, Republic of China, Chinese Taipei, TPE, Taiwanese
TZ: TAN, Tanzania, Tanzanian; UA: Ukrainian; UG: Ugandan; US: USA, America, United States of America, American
UY: URU, Uruguayan; UZ: Uzbek; VA: Vatican, Vatican City, Holy See; VC: VIN; VE: Venezuela, Venezuelan
VG: British Virgin Islands; VI: ISV, US Virgin Islands; VN: VIE, Vietnam, Vietnamese; VU: VAN; WS: SAM, Samoan
YE: Yemeni; ZA: RSA, South African; ZM: ZAM, Zambian; ZW: ZIM, Zimbabwean, Rhodesia; ENG: England, English
SCO: Scotland, Scottish, Scots, Scot; WAL: Wales, Welsh; NIR: Northern Ireland, Northern Irish
KOS: Kosovo, Kosovan, Kosovar; SUN: Soviet Union, USSR, URS, Soviet; DDR: East Germany, GDR, East German
FRG: West Germany, West German; TCH: Czechoslovakia, Czechoslovak; YUG: Yugoslavia, Yugoslav
SCG: Serbia and Montenegro; EUN: Unified Team; AHO: Netherlands Antilles; IOA: Independent Olympic Athletes
"""
_NOTE = re.compile(r"(?<=\w)\s*\([^()]*\)$")


@cache
def _names() -> dict[str, str]:
    """Normal form of a name -> code. Codes keep their capitals: `IN` is India, `in` is no country."""
    names: dict[str, str] = {}
    for country in pycountry.countries:
        code = country.alpha_2
        for field in ("name", "official_name", "common_name"):
            if name := getattr(country, field, None):
                names[normalize(name)] = names[normalize(_NOTE.sub("", name))] = code
                names[normalize(re.sub(r"^(.*), (.*)$", r"\2 \1", name))] = code
        names[code] = names[country.alpha_3] = code
    for entry in re.split(r"[;\n]", _ALIASES.strip()):
        code, _, aliases = entry.strip().partition(": ")
        names.setdefault(code, code)
        for alias in filter(None, aliases.split(", ")):
            is_code = alias.isupper()
            if is_code:
                names[alias] = code
            if not is_code or alias in ("UK", "USA", "USSR", "UAE"):
                names[normalize(alias)] = code
    return names


@lru_cache(maxsize=1 << 14)
def country_code(text: str) -> str | None:
    """Returns the code of the country (or nationality) that the whole text names, None if it names none.

    Codes count in capitals only. A note in brackets is ignored.
    """
    bare = _NOTE.sub("", strip_notes(text).strip())
    names = _names()
    if re.fullmatch(r"(?:[A-Z]\.? ?){2,4}", bare):
        return names.get(re.sub(r"[^A-Z]", "", bare))
    words = normalize(bare)
    return names.get(words) or names.get(words.removeprefix("the "))


@cache
def _subdivisions() -> dict[str, str]:
    """Postal code of a US state, Canadian province or Australian state -> its normal form."""
    codes = {}
    for country in ("AU", "CA", "US"):
        for part in pycountry.subdivisions.get(country_code=country):
            if part.code.startswith(f"{country}-"):
                codes[part.code[3:]] = normalize(part.name)
    return codes


@cache
def _larger_regions() -> frozenset[str]:
    """Normal forms of the states, provinces, regions and the like of all countries: what may qualify a place.

    Cities that are regions of their own are left out: after a comma they are more often the next item of a list.
    """
    cities = re.compile("city|cities|municipality|capital|metropolitan|town|borough|council|commune", re.IGNORECASE)
    names = {normalize(part.name) for part in pycountry.subdivisions if not cities.search(part.type)}
    return frozenset(names - word_set("berlin hamburg bremen vienna wien madrid lagos tokyo osaka kyoto moscow"))


def is_region(name: str) -> bool:
    """Whether a name as `region_name` returns it is that of a country or of a state, province or region of one."""
    return name in _larger_regions() or name.isupper()


@lru_cache(maxsize=1 << 14)
def region_name(text: str) -> str:
    """Returns one name for a region or country that qualifies a place: `IL` and `Illinois`, `UK` and `Britain`."""
    bare = re.sub(r"[.\s]", "", text)
    if bare.isupper() and bare in _subdivisions():
        return _subdivisions()[bare]
    words = normalize(text)
    if words in _subdivisions().values():
        return words
    return country_code(text.strip()) or words
