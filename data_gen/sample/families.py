"""Which tables go into the bundled sample, and the family of each: a list of rules, read from top to bottom.

A rule is `(family, pattern)`; the pattern is searched in `page title | section title | caption | columns`. The first
rule that fits names the family, and a table that fits none is left out. A family holds tables that speak of the same
kind of thing and are likely to share entities or columns, so that splits by family keep twins together. `SKIP` lists
tables that fit a rule but whose header or rows were garbled on the way to the source.
"""

FAMILIES: tuple[tuple[str, str], ...] = (
    # awards and contests
    ("nobel_and_booker_prizes", r"^Nobel Prize laureates|Booker Prize \| Winners"),
    ("eurovision_contests", r"^Eurovision Song Contest|Israel in the Eurovision|^OGAE|Balkan Music Awards"),
    ("music_awards", r"^(Grammy|Juno|Latin Grammy) Award|^Sanremo|^Canzonissima|Accolades"),
    ("champion_race_horses", r"^American Champion "),
    ("film_and_acting_awards", r"Kerala State Film|Soap Opera Digest|^Yeo Yann|^John McTiernan"),
    ("ice_hockey_awards", r"Atlantic Hockey|Conacher|New Jersey Devils award|^Boston Bruins"),
    ("college_athlete_honours", r"Indiana Mr\. Basketball|Fairfield Stags|^Lorenzo Romar"),
    ("football_awards", r"Manager of the Month|Golden Boot|FIFA World Rankings \| Awards"),
    ("beauty_pageants", r"Miss Pokhara|Miss Russia|Nuestra Belleza|Diva Search"),
    ("victoria_cross_and_knighthoods", r"Victoria Cross|knights and dames"),
    # medals and results
    (
        "medal_tables",
        r"\| (Rank|Pos|)\|?(Nation|Country:)\|Gold|Medal table|Medals & Participation|ASEAN Basketball League \|",
    ),
    ("national_medalists", r"\| Medal\|Name\|"),
    (
        "olympic_event_medalists",
        r"Olympic medalists in alpine|100 metres hurdles \| (World|Olympic)|Archery World Cup|sevens",
    ),
    (
        "asian_tournament_medalists",
        r"Tennis at the Asian Games \| Medalists|Asian Cycling Ch.*Men|Swatch FIVB.*results",
    ),
    ("doping_cases", r"^Doping at the Olympic|doping cases in athletics"),
    ("athletics_performances", r"10,000 metres|Season's bests|Fastest 25|^Decathlon|1980 World Championships in Ath"),
    ("city_marathons", r"Berlin Marathon"),
    ("swimming_records", r"Short Course Swimming"),
    ("figure_skating_scores", r"figure skating|ISU Junior Grand Prix"),
    ("speed_and_ski_races", r"ISU Speed Skating|Nordic World Ski"),
    (
        "cycling_stage_races",
        r"Vuelta a Burgos|Critérium|Presidential Tour|Holland Hills|Tour de France|Caisse|UCI America",
    ),
    ("cyclist_careers", r"^Gong Jinjie|^Vitaliy Shchedov"),
    ("trans_ama_motocross", r"Trans-AMA"),
    ("golf_open_2000", r"2000 Open Championship \| Round"),
    ("golf_tours", r"ALPG Tour"),
    ("single_golfers", r"Dave Stockton|Web\.com Tour"),
    ("formula_three", r"Formula Three|Formula 3|Barber Dodge"),
    ("boxers", r"female boxers|Boxing Union|Muaythai"),
    ("mma_records", r"Mixed martial arts record"),
    ("pro_wrestling", r"CMLL|Consejo Mundial|Leyenda de Plata|Bound for Glory"),
    ("racket_sports_records", r"Chen Long|Shortest tennis|Andre Begemann|Davis Cup"),
    ("dancing_shows", r"Brendan Cole|The Farm Spain.*Contestants|Marele"),
    # football leagues
    ("football_belarus", r"Belarusian (Premier|First) League"),
    ("football_norway", r"Tippeligaen|Norwegian First Division|Norwegian football league"),
    ("football_faroe_islands", r"Faroe Islands Premier"),
    ("football_finland", r"Veikkausliiga|Finnish League Cup"),
    ("football_korea", r"K League|Challengers League"),
    ("football_thailand", r"Regional League Division 2|Thai League"),
    ("football_china", r"China League|Chinese Super League \| Head"),
    ("football_algeria", r"Algerian Ligue|Algerian football champions"),
    ("football_mexico", r"Serie A de México"),
    ("football_league_personnel", r"Personnel and kits"),
    (
        "football_league_grounds",
        r"Moldovan National|LFF I lyga|Danish 1st Division|FA Women's National|Scottish Junior|"
        r"Úrvalsdeild|Copa Bolivia|Belgian (Fourth|Promotion)",
    ),
    ("us_soccer_grounds", r"Colonial Athletic Association men's soccer|[Ss]occer-specific|United Soccer Association"),
    ("foxtel_cup", r"Foxtel Cup"),
    ("football_transfers", r"D\.C\. United season \| Transfers|Brøndby IF season|Chelsea F\.C\. records"),
    ("football_squad_statistics", r"Shrewsbury Town|East Bengal|Vancouver Whitecaps"),
    (
        "football_player_records",
        r"Boca Juniors|Most [Cc]aps|Top [Gg]oal|Most appearances|Umm Salal|England national rugby league|"
        r"1940s participants|All-time record participants",
    ),
    ("football_transfers", r"List of Parma"),
    # basketball, handball
    ("basketball_clubs_spain", r"Liga EBA"),
    ("indoor_sports_clubs", r"Basketball League of Serbia|Legadue Basket \| 2012|Handball"),
    ("illinois_basketball", r"Illinois Fighting Illini.*(Roster|Player stats|Team \|)"),
    (
        "basketball_rosters",
        r"Brose Baskets \| Players|San Antonio Spurs season \| (Player|Regular season \| Player|Draft)|"
        r"NBA Draft|Player stats",
    ),
    # North American football and others
    ("wake_forest_football", r"Wake Forest Demon"),
    (
        "college_football_schedules",
        r"(Mountaineers|Tigers|Midshipmen|Ducks|Red Raiders|Badgers|Gators) football team.*Schedule",
    ),
    ("nfl_schedules", r"(Vikings|Broncos|Rams) season \| (Regular season > )?Sched"),
    ("football_statistics_wisconsin", r"Wisconsin Badgers football team \| 2012 stats"),
    ("college_coaches", r"Badgers football team.*[Cc]oaching|Gators football team.*Coaching|Head coaches"),
    ("new_york_rangers", r"New York Rangers season"),
    ("yorkshire_cricket", r"Yorkshire County Cricket"),
    ("michigan_football_roster", r"Michigan Wolverines football team"),
    ("sabina_park_centuries", r"Sabina Park"),
    (
        "college_conferences",
        r"NCCAA institutions|State Colleges and Universities Ath|Appalachian Athletic Conference|"
        r"FCS conferences|1994 Group",
    ),
    ("city_sports_teams", r"Sport in Queensland|Sports in Charlotte.*Teams|Interstate matches|Suncorp"),
    # buildings and venues
    (
        "sports_venues",
        r"Sports in Charlotte.*Venues|sports venues in North|baseball stadiums|indoor arenas|Olympics \|"
        r" Venues|Venues of the|ACC Men's|auto racing tracks|Home venues",
    ),
    ("tallest_structures", r"tallest (buildings|freestanding)"),
    ("castles", r"castles in the Pays"),
    ("shopping_malls", r"shopping malls|Shopping in Chennai"),
    ("churches_us", r"List of (Baptist|Catholic) churches"),
    (
        "listed_buildings",
        r"Grade II listed|Frank Lloyd Wright|Edward Columbus|Somerset towers|Garden State|places of worship",
    ),
    ("national_register_places", r"National Register of Historic|State Historic Sites|Indiana state historical"),
    ("historic_sites_japan", r"Historic Sites of Japan|Scenic Beauty of Japan|Natural monuments of South"),
    ("public_art_london", r"public art in the London"),
    ("powerline_spans", r"List of spans"),
    (
        "infrastructure",
        r"bridges in the Phil|tunnels in Germany|power stations in Wales|hotels in Metro|"
        r"correctional facilities|Health System",
    ),
    ("metro_stations", r"Brussels Metro|Light rail in North"),
    ("subway_lines", r"New York City Subway stations"),
    # transport
    ("airports", r"List of airports|Air Southwest"),
    ("air_routes", r"busiest|Busiest|Bergen Airport"),
    ("locomotives", r"Royal Arsenal|Hunslet|Leighton Buzzard|San Francisco and San Jose"),
    ("ships", r"Convoy ONS|Eagle-class|Ha-201"),
    ("vehicles", r"main battle tanks|Stoewer|3dfx"),
    # earth
    ("mountains_central_america", r"Mountain peaks of Central America"),
    ("mountains", r"Ultras|Thirteener|Dolomites|Sawtooth"),
    ("ecuador_and_angola_cantons", r"Chimborazo|Morona|Cuanza"),
    (
        "small_towns",
        r"Brittany \(|South Bohemian|Metropolitan Fresno|Harrison County|Berlin population|"
        r"West Indies Fed|Provinces of South Africa|Polregio",
    ),
    (
        "large_cities",
        r"cities in Ghana|cities in Tunisia|Biharia|Latin America \||metropolitan areas in India|"
        r"Metropolitan areas of Mexico",
    ),
    ("canadian_municipalities", r"100 largest municipalities in Canada"),
    ("uk_urban_areas", r"urban areas in the United Kingdom"),
    ("counties_us", r"Montana locations|presidential election in Missouri"),
    ("protected_areas", r"national parks of Finland|theme parks|Theme park"),
    ("places_rio_grande_do_norte", r"Rio Grande do Norte"),
    ("rivers_and_islands", r"rivers of Latvia|Subantarctic|Manitoba"),
    ("postcode_districts", r"postcode area"),
    ("california_places", r"places in California"),
    # schools
    ("middle_schools_hawaii", r"middle schools in Hawaii"),
    ("schools", r"music schools|architecture schools|Deobandi|medical colleges|Upper Grand"),
    # politics
    (
        "us_officials",
        r"Assistant Secretary of the Navy|National Guard Bureau|Colorado Senate|Jewish American pol|"
        r"Candy Desk|Religious affiliation|Western Maryland|Club for Growth",
    ),
    (
        "world_officials",
        r"Premier of the Western Cape|Moldovan Parliament|Italian Air Force \| Chiefs|"
        r"Ambassadors of Russia|Puerto Rico Council|TICAD|University of Oregon fac",
    ),
    ("european_union_politicians", r"Eurogroup|European People's"),
    ("indian_constituencies", r"Lok Sabha|Nettapakkam"),
    ("turkish_and_other_mayors", r"Turkish local elections|Permanent Court"),
    ("canadian_members_of_parliament", r"House members of the"),
    (
        "international_parties",
        r"Global Greens|International Workers|Community of Portuguese|East Asian Football Fed|Cricket \|",
    ),
    ("legislature_compositions", r"Senate of Chile \| Political|Islamic Supreme"),
    # culture
    ("canadian_writers", r"Canadian writers"),
    ("television_roles", r"(Filmography|Screen).*[Tt]elevision|Television \| Year\|Title|Television app|Casey Donovan"),
    ("film_crew_credits", r"Selznick|Deborah Hopper|Gary D\. Roach|Bert Schneider"),
    ("film_roles", r"Filmography"),
    ("theatre_and_opera", r"Joe Armstrong|Detlev Glanert"),
    ("animated_shorts", r"Warner Bros\. Home Entertainment"),
    ("films", r"Chiller Films|Turkish films"),
    ("beverly_hills_90210", r"Beverly Hills, 90210"),
    ("summer_wine_episodes", r"Last of the Summer Wine episodes \| Series > Series"),
    ("tv_episodes", r"I Spy \(1965|North Shore \(TV|Silent Force"),
    ("album_track_listings", r"Track listing|Track Listing|Maroon 5|Just Dance 4|Tatort"),
    ("discographies", r"Dindisc|Jackie Chan disc|Kvitka|VG-lista"),
    ("paintings", r"Edward Hopper|Terence Cuneo|Roger de Piles"),
    ("video_games", r"Atari arcade|Marvelous Ent|Wii Speak|NFL Blitz"),
    ("dungeons_and_dragons_monsters", r"Dungeons & Dragons.*(Series Modules|TSR 1013|TSR 9173)"),
    ("radio_stations", r"Media in|radio stations|MXR|Digital radio"),
    ("television_stations", r"television stations in Indiana|CNBC channels|Television in South Korea"),
    ("books_and_newspapers", r"Orson Scott Card|Book censorship|newspapers in Mass|National Reporter"),
    ("fictional_things", r"autistic fictional|fictional shared universes|Gotham City"),
    # science
    ("space_telescopes", r"space telescopes|SSL 1300|European Astronaut"),
    ("chemistry", r"Catalytic oxidation|Protactinium|Chromosome"),
    ("stars", r"brightest stars"),
    ("languages", r"^Isan|Rinconada"),
)

SKIP: frozenset[str] = frozenset(
    {
        "ott-2012_Tippeligaen_2",  # three rows a club, laid out as a picture
        "ott-List_of_Places_of_Scenic_Beauty_of_Japan_(Niigata)_0",  # names run into descriptions
        "ott-List_of_works_by_Terence_Cuneo_0",
        "ott-Sweden_at_the_2006_Winter_Olympics_0",
        "ott-Decathlon_0",  # a top 25 of which 11 rows are left
        "wtq-204-575-4",  # group headings stand in the header
        "wtq-204-63-0",
        "wtq-203-277-0",  # results without names
        "ott-CMLL_Super_Viernes_(February_2012)_3",
        "ott-CMLL_Super_Viernes_(February_2012)_4",
        "wtq-203-862-1",  # jury votes by letter
    }
)
