"""Layouts of tables that a teacher wrote, and where parameters of SQL take their values from."""

from __future__ import annotations

import pytest

from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import WorldDefinition
from synth.worlds.layout import Layout, in_dialect, levels, places_of, pointless, read_layout, table_of

SHOP = """
CREATE TABLE orders (order_id INT PRIMARY KEY AUTO_INCREMENT, item_id INT NOT NULL, buyer INTEGER REFERENCES people, count INT,
    state TEXT CHECK (state IN ('new', 'sent')), FOREIGN KEY (item_id) REFERENCES items(item_id));
CREATE TABLE items (item_id INTEGER PRIMARY KEY, name TEXT NOT NULL, price REAL, day DATE);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
"""


def layout_of(tables: str) -> Layout:
    return read_layout(ToolDatabase(WorldDefinition(domain="shop", tables=in_dialect(tables), tools={})))


def test_tables_come_after_those_that_they_refer_to_and_columns_say_what_they_hold() -> None:
    layout = layout_of(SHOP)
    assert levels(layout) == [["items", "people"], ["orders"]] and list(layout) == ["items", "people", "orders"]
    order = {column.name: column for column in layout["orders"]}
    assert order["order_id"].numbered and order["order_id"].is_id and not order["count"].is_id
    assert (order["item_id"].parent, order["buyer"].parent, order["state"].options) == ("items", "people", ("new", "sent"))
    assert [column.type for column in layout["items"]] == ["integer", "string", "number", "string"]


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ("CREATE TABLE a (b INTEGER PRIMARY KEY);", "2 to 6 tables"),
        ("CREATE TABLE a (x INTEGER PRIMARY KEY); CREATE TABLE b (y INTEGER PRIMARY KEY);", "no table refers"),
        ("CREATE TABLE a (x INTEGER PRIMARY KEY); CREATE TABLE b (y INTEGER PRIMARY KEY REFERENCES c);", "c, which does not exist"),
        ("CREATE TABLE a (x INT UNIQUE, z INT PRIMARY KEY); CREATE TABLE b (y INT PRIMARY KEY, x REFERENCES a(x));", "primary key of a"),
        ("CREATE TABLE a (x INTEGER PRIMARY KEY); CREATE TABLE b (x INTEGER REFERENCES a);", "b has no primary key"),
        ("CREATE TABLE a (x INT PRIMARY KEY REFERENCES b); CREATE TABLE b (y INT PRIMARY KEY REFERENCES a);", "refer to each other"),
        (f"CREATE TABLE a (x INTEGER PRIMARY KEY {', c'.join(['', *'12345678'])}); CREATE TABLE b (y INTEGER PRIMARY KEY);", "9 columns"),
    ],
)  # fmt: skip
def test_tables_that_rows_cannot_be_made_for_are_refused_with_what_to_correct(tables: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        layout_of(tables.replace("b (y INTEGER PRIMARY KEY);", "b (y INTEGER PRIMARY KEY, x REFERENCES a);") if "c1" in tables else tables)


def test_a_table_that_says_nothing_of_the_others_is_pointless() -> None:
    desk = "CREATE TABLE desk (desk_id INTEGER PRIMARY KEY, action TEXT); CREATE TABLE till (id INT PRIMARY KEY, x REFERENCES items);"
    assert pointless(layout_of(SHOP + desk)) == {"desk", "till"} and not pointless(layout_of(SHOP))


@pytest.mark.parametrize(
    ("sql", "places"),
    [
        ("SELECT * FROM items WHERE LOWER(name) = LOWER(:name)", {"name": "items.name find"}),
        (
            "SELECT * FROM items WHERE name LIKE '%' || :part || '%' AND price <= :most",
            {"part": "items.name find", "most": "items.price find"},
        ),
        (
            "SELECT o.state FROM orders o JOIN people AS p ON p.id = o.buyer WHERE p.name = :who AND o.item_id = :item",
            {"who": "people.name find", "item": "orders.item_id find"},
        ),
        (
            "INSERT INTO orders (item_id, buyer, count) VALUES (:item_id, (SELECT id FROM people WHERE name = :who), :count)",
            {"item_id": "orders.item_id insert", "who": "people.name find", "count": "orders.count insert"},
        ),
        (
            "UPDATE orders SET state = :new_state, count = count + :more WHERE order_id = :order_id",
            {"new_state": "orders.state set", "more": "orders.count add", "order_id": "orders.order_id find"},
        ),
        ("SELECT * FROM items WHERE price BETWEEN :low AND :high", {"low": "items.price find", "high": "items.price find"}),
        ("SELECT :thing", {}),
    ],
)
def test_a_parameter_is_placed_at_the_column_that_it_meets(sql: str, places: dict[str, str]) -> None:
    found = places_of([sql], layout_of(SHOP))
    assert {name: f"{place.column.table}.{place.column.name} {place.use}" for name, place in found.items()} == places


def test_a_statement_is_about_the_first_table_that_it_names() -> None:
    assert table_of("SELECT title FROM orders JOIN items USING (item_id)", layout_of(SHOP)) == "orders"
