"""The worlds that come with the package: flights and bookings, goods in several stores, and a team's calendar."""

from __future__ import annotations

from itertools import permutations
from random import Random

from rl.envs.tool_world.definition import GeneratedWorld, Rows

_NAMES = "Amber Basil Cora Dario Elin Farid Greta Hugo Ines Jonas Kaya Lior Mira Nils Olga Pavel"
NAMES = tuple(_NAMES.split())
CITIES = ("Aveiro", "Bergen", "Cusco", "Dakar", "Ghent", "Hanoi")
STORES = ("north", "south", "harbour")
_GOODS = "lamp kettle rope ladder drill bucket stove shelf pump saw tent clock mirror fan vase broom"
GOODS = tuple(_GOODS.split())
SUPPLIERS = ("Alder Ltd", "Birch & Co", "Cedar Works", "Dogwood Trade")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
HOURS = range(9, 17)
_SUBJECTS = "budget launch hiring review survey planning training retreat audit demo kickoff handover"
SUBJECTS = tuple(_SUBJECTS.split())


def _flights(rng: Random, size: int) -> Rows:
    routes = rng.sample(list(permutations(CITIES, 2)), max(2, size // 3))
    flights: Rows = {"flights": [], "bookings": []}
    for number in range(size):
        origin, destination = routes[number % len(routes)]
        price, hour, seats = rng.randrange(60, 400), rng.randrange(5, 23), rng.choice((0, 1, 2, 5, 9))
        values = (f"F{number + 100}", origin, destination, hour, price, seats)
        flights["flights"].append(dict(zip(("flight", "origin", "destination", "hour", "price", "seats"), values, strict=True)))
    for passenger in rng.sample(NAMES, min(len(NAMES) - 4, size)):
        flight = rng.choice(flights["flights"])["flight"]
        flights["bookings"].append({"passenger": passenger, "flight": flight, "bags": rng.randrange(3)})
    return flights


BOOKINGS = GeneratedWorld(
    "bookings",
    """
CREATE TABLE flights (
    flight TEXT PRIMARY KEY, origin TEXT NOT NULL, destination TEXT NOT NULL,
    hour INTEGER NOT NULL, price INTEGER NOT NULL, seats INTEGER NOT NULL
);
CREATE TABLE bookings (
    passenger TEXT NOT NULL, flight TEXT NOT NULL REFERENCES flights, bags INTEGER NOT NULL DEFAULT 0 CHECK (bags BETWEEN 0 AND 5),
    PRIMARY KEY (passenger, flight)
);
""",
    """
-- tool: find_flights
-- List the flights from one city to another.
-- :origin text the city that they leave from
-- :destination text the city that they go to
SELECT flight, hour, price, seats FROM flights WHERE origin = :origin AND destination = :destination ORDER BY flight;

-- tool: list_bookings
-- List the bookings of a passenger.
-- :passenger text the passenger's name
SELECT flight, origin, destination, bags FROM bookings JOIN flights USING (flight) WHERE passenger = :passenger ORDER BY flight;

-- tool: book
-- Book a seat on a flight.
-- :flight text the flight
-- :passenger text the passenger's name
UPDATE flights SET seats = seats - 1 WHERE flight = :flight AND seats > 0; -- else: there is no such flight with a free seat
INSERT INTO bookings (passenger, flight) VALUES (:passenger, :flight) RETURNING *;

-- tool: rebook
-- Move a booking to another flight; the bags stay.
-- :passenger text the passenger's name
-- :flight text the flight that is booked
-- :new_flight text the flight to move to
UPDATE flights SET seats = seats - 1 WHERE flight = :new_flight AND seats > 0; -- else: there is no such new flight with a free seat
UPDATE flights SET seats = seats + 1 WHERE flight = :flight; -- else: there is no such flight
UPDATE bookings SET flight = :new_flight WHERE passenger = :passenger AND flight = :flight RETURNING *; -- else: there is no such booking

-- tool: cancel
-- Cancel a booking; its seat is free again.
-- :passenger text the passenger's name
-- :flight text the flight that is booked
DELETE FROM bookings WHERE passenger = :passenger AND flight = :flight; -- else: there is no such booking
UPDATE flights SET seats = seats + 1 WHERE flight = :flight;

-- tool: set_bags
-- Set the number of bags of a booking.
-- :passenger text the passenger's name
-- :flight text the flight that is booked
-- :bags integer the number of bags, 0 to 5
UPDATE bookings SET bags = :bags WHERE passenger = :passenger AND flight = :flight RETURNING *; -- else: there is no such booking
""",
    _flights,
)


def _stocks(rng: Random, size: int) -> Rows:
    rows: Rows = {"items": [], "stock": [], "offers": []}
    for name in rng.sample(GOODS, min(size, len(GOODS))):
        rows["items"].append({"item": name, "price": rng.randrange(5, 120), "listed": True})
        rows["stock"] += [{"item": name, "store": store, "count": rng.randrange(0, 60)} for store in STORES]
        suppliers = rng.sample(SUPPLIERS, rng.randrange(2, 4))
        rows["offers"] += [{"item": name, "supplier": supplier, "cost": rng.randrange(2, 90)} for supplier in suppliers]
    return rows


INVENTORY = GeneratedWorld(
    "inventory",
    """
CREATE TABLE items (item TEXT PRIMARY KEY, price INTEGER NOT NULL CHECK (price > 0), listed BOOLEAN NOT NULL);
CREATE TABLE stock (
    item TEXT NOT NULL REFERENCES items, store TEXT NOT NULL, count INTEGER NOT NULL CHECK (count >= 0), PRIMARY KEY (item, store)
);
CREATE TABLE offers (item TEXT NOT NULL REFERENCES items, supplier TEXT NOT NULL, cost INTEGER NOT NULL, PRIMARY KEY (item, supplier));
CREATE TABLE orders (
    item TEXT NOT NULL, supplier TEXT NOT NULL, store TEXT NOT NULL, count INTEGER NOT NULL CHECK (count > 0),
    PRIMARY KEY (item, supplier, store),
    FOREIGN KEY (item, supplier) REFERENCES offers, FOREIGN KEY (item, store) REFERENCES stock
);
""",
    """
-- tool: get_item
-- Show the price of an item, and whether it is listed.
-- :item text the item's name
SELECT * FROM items WHERE item = :item;

-- tool: stock_of
-- List how many of an item each store has.
-- :item text the item's name
SELECT store, count FROM stock WHERE item = :item ORDER BY store;

-- tool: stock_in
-- List how many of each item a store has.
-- :store text the store's name
SELECT item, count FROM stock WHERE store = :store ORDER BY item;

-- tool: offers_for
-- List the suppliers of an item with their costs.
-- :item text the item's name
SELECT supplier, cost FROM offers WHERE item = :item ORDER BY supplier;

-- tool: order
-- Order an item from a supplier for a store; an order of the same three is replaced.
-- :item text the item's name
-- :supplier text the supplier's name
-- :store text the store's name
-- :count integer the number of items, at least 1
SELECT 1 FROM offers WHERE item = :item AND supplier = :supplier; -- else: this supplier does not offer this item
SELECT 1 FROM stock WHERE item = :item AND store = :store; -- else: there is no such store
INSERT OR REPLACE INTO orders (item, supplier, store, count) VALUES (:item, :supplier, :store, :count) RETURNING *;

-- tool: transfer
-- Move some of an item from one store to another.
-- :item text the item's name
-- :source text the store that gives them
-- :target text the store that takes them
-- :count integer the number of items, at least 1
SELECT 1 WHERE :count > 0 AND :source <> :target; -- else: a transfer moves at least 1 item to another store
UPDATE stock SET count = count - :count WHERE item = :item AND store = :source AND count >= :count; -- else: the source has too few of it
UPDATE stock SET count = count + :count WHERE item = :item AND store = :target; -- else: there is no such target
SELECT store, count FROM stock WHERE item = :item AND store IN (:source, :target) ORDER BY store;

-- tool: set_price
-- Set the price of an item.
-- :item text the item's name
-- :price integer the price, at least 1
UPDATE items SET price = :price WHERE item = :item RETURNING *; -- else: there is no such item

-- tool: set_listed
-- List an item for sale, or take it off.
-- :item text the item's name
-- :listed boolean whether it is for sale
UPDATE items SET listed = :listed WHERE item = :item RETURNING *; -- else: there is no such item
""",
    _stocks,
)


def _meetings(rng: Random, size: int) -> Rows:
    people = rng.sample(NAMES, min(len(NAMES), max(4, size // 2)))
    busy: set[tuple[str, str, int]] = set()
    rows: Rows = {"meetings": [], "attendees": []}
    for subject in rng.sample(SUBJECTS, min(size, len(SUBJECTS))):
        day, hour, invited = rng.choice(DAYS), rng.choice(HOURS), sorted(rng.sample(people, 2))
        if not any((person, day, hour) in busy for person in invited):
            busy |= {(person, day, hour) for person in invited}
            rows["meetings"].append({"subject": subject, "day": day, "hour": hour})
            rows["attendees"] += [{"subject": subject, "person": person} for person in invited]
    return rows


_SHOW = """
SELECT subject, day, hour, (
    SELECT group_concat(person, ', ') FROM (SELECT person FROM attendees a WHERE a.subject = m.subject ORDER BY person)
) AS people FROM meetings m WHERE subject = :subject;"""
_ALL_FREE = """
SELECT 1 WHERE NOT EXISTS (
    SELECT 1 FROM attendees JOIN meetings USING (subject) GROUP BY person, day, hour HAVING count(*) > 1
); -- else: somebody who takes part is busy at that hour"""

AGENDA = GeneratedWorld(
    "agenda",
    f"""
CREATE TABLE meetings (
    subject TEXT PRIMARY KEY, day TEXT NOT NULL CHECK (day IN {DAYS}), hour INTEGER NOT NULL CHECK (hour BETWEEN {HOURS[0]} AND {HOURS[-1]})
);
CREATE TABLE attendees (
    subject TEXT NOT NULL REFERENCES meetings ON DELETE CASCADE, person TEXT NOT NULL, PRIMARY KEY (subject, person)
);
""",
    f"""
-- tool: find_meeting
-- Show a meeting.
-- :subject text what it is about
{_SHOW}

-- tool: meetings_of
-- List the meetings of a person.
-- :person text the person's name
SELECT subject, day, hour FROM meetings JOIN attendees USING (subject) WHERE person = :person ORDER BY subject;

-- tool: free_hours
-- List the hours at which a person has no meeting on a day.
-- :person text the person's name
-- :day text Monday to Friday
SELECT 1 WHERE :day IN {DAYS}; -- else: meetings are on Monday to Friday
SELECT value AS hour FROM json_each('{list(HOURS)}') WHERE value NOT IN (
    SELECT hour FROM meetings JOIN attendees USING (subject) WHERE person = :person AND day = :day
) ORDER BY value;

-- tool: schedule
-- Set up a meeting of an hour.
-- :subject text what it is about; no other meeting may have it
-- :day text Monday to Friday
-- :hour integer the hour that it begins at, 9 to 16
-- :people array the names of all who take part
INSERT INTO meetings (subject, day, hour) VALUES (:subject, :day, :hour);
INSERT INTO attendees (subject, person) SELECT DISTINCT :subject, value FROM json_each(:people); -- else: a meeting needs people
{_ALL_FREE}
{_SHOW}

-- tool: move
-- Move a meeting to another time.
-- :subject text what it is about
-- :day text Monday to Friday
-- :hour integer the hour that it begins at, 9 to 16
UPDATE meetings SET day = :day, hour = :hour WHERE subject = :subject; -- else: there is no such meeting
{_ALL_FREE}
{_SHOW}

-- tool: invite
-- Add a person to a meeting.
-- :subject text what it is about
-- :person text the person's name
INSERT INTO attendees (subject, person) SELECT subject, :person FROM meetings WHERE subject = :subject; -- else: there is no such meeting
{_ALL_FREE}
{_SHOW}

-- tool: call_off
-- Call a meeting off.
-- :subject text what it is about
DELETE FROM meetings WHERE subject = :subject; -- else: there is no such meeting
""",
    _meetings,
)
