"""Goods in several stores, and suppliers who bring more."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from rl.envs.tool_world.environment import Schema, World, as_json, records_where
from rl.envs.tool_world.steps import Tables
from rl.tools import ToolError

STORES = ("north", "south", "harbour")
_GOODS = "lamp kettle rope ladder drill bucket stove shelf pump saw tent clock mirror fan vase broom"
GOODS = tuple(_GOODS.split())
SUPPLIERS = ("Alder Ltd", "Birch & Co", "Cedar Works", "Dogwood Trade")


class Inventory(World):
    """A trader's books."""

    domain = "inventory"
    schema: ClassVar[Schema] = {
        "items": {"name": str, "price": int, "listed": bool},
        "stock": {"item": str, "store": str, "count": int},
        "offers": {"item": str, "supplier": str, "cost": int},
        "orders": {"item": str, "supplier": str, "store": str, "count": int},
    }
    tools = ("get_item", "stock_of", "stock_in", "offers_for", "order", "transfer", "set_price", "set_listed")

    @classmethod
    def _populate(cls, rng: Random, size: int) -> Tables:
        goods = rng.sample(GOODS, min(size, len(GOODS)))
        state: Tables = {"items": {}, "stock": {}, "offers": {}, "orders": {}}
        for name in goods:
            state["items"][name] = {"name": name, "price": rng.randrange(5, 120), "listed": True}
            for store in STORES:
                state["stock"][f"{name}@{store}"] = {"item": name, "store": store, "count": rng.randrange(0, 60)}
            for supplier in rng.sample(SUPPLIERS, rng.randrange(2, 4)):
                state["offers"][f"{name}@{supplier}"] = {"item": name, "supplier": supplier, "cost": rng.randrange(2, 90)}
        return state

    def get_item(self, item: str) -> str:
        """Show the price of an item, and whether it is listed.

        Args:
            item: the item's name.
        """
        return as_json(self._item(item))

    def stock_of(self, item: str) -> str:
        """List how many of an item each store has.

        Args:
            item: the item's name.
        """
        return as_json(records_where(self.state, "stock", item=item))

    def stock_in(self, store: str) -> str:
        """List how many of each item a store has.

        Args:
            store: the store's name.
        """
        return as_json(records_where(self.state, "stock", store=store))

    def offers_for(self, item: str) -> str:
        """List the suppliers of an item with their costs.

        Args:
            item: the item's name.
        """
        return as_json(records_where(self.state, "offers", item=item))

    def order(self, item: str, supplier: str, store: str, count: int) -> str:
        """Order an item from a supplier for a store; an order of the same three is replaced.

        Args:
            item: the item's name.
            supplier: the supplier's name.
            store: the store that it is brought to.
            count: how many, at least 1.
        """
        if f"{item}@{supplier}" not in self.state["offers"]:
            raise ToolError(f"{supplier!r} does not offer {item!r}")
        self._stock(item, store)
        if count < 1:
            raise ToolError("an order is for at least 1")
        key = f"{item}@{supplier}@{store}"
        self.state["orders"][key] = {"item": item, "supplier": supplier, "store": store, "count": count}
        return as_json({"order": key})

    def transfer(self, item: str, source: str, target: str, count: int) -> str:
        """Move an item from one store to another.

        Args:
            item: the item's name.
            source: the store that gives.
            target: the store that gets.
            count: how many, at least 1.
        """
        giving, getting = self._stock(item, source), self._stock(item, target)
        if source == target or not 1 <= count <= giving["count"]:
            raise ToolError(f"{source} can give 1 to {giving['count']} to another store")
        giving["count"] -= count
        getting["count"] += count
        return as_json({source: giving["count"], target: getting["count"]})

    def set_price(self, item: str, price: int) -> str:
        """Set the price of an item.

        Args:
            item: the item's name.
            price: the price, at least 1.
        """
        if price < 1:
            raise ToolError("a price is at least 1")
        self._item(item)["price"] = price
        return as_json(self._item(item))

    def set_listed(self, item: str, listed: bool) -> str:
        """List an item for sale, or take it off.

        Args:
            item: the item's name.
            listed: whether it is for sale.
        """
        self._item(item)["listed"] = listed
        return as_json(self._item(item))

    def _item(self, name: str) -> dict[str, object]:
        if name not in self.state["items"]:
            raise ToolError(f"there is no item {name!r}")
        return self.state["items"][name]

    def _stock(self, item: str, store: str) -> dict[str, int]:
        self._item(item)
        if f"{item}@{store}" not in self.state["stock"]:
            raise ToolError(f"there is no store {store!r}, only {', '.join(STORES)}")
        return self.state["stock"][f"{item}@{store}"]
