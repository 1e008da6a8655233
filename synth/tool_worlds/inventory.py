"""What can be asked for in the world of goods and stores."""

from __future__ import annotations

from rl.environments.tool_world.inventory import STORES
from synth.tool_worlds.draft import Draft, Goal, Unfit, only_best


def _restock(draft: Draft) -> str:
    store = draft.pick(STORES)
    scarce = only_best(draft.call("stock_in", store=store), lambda record: record["count"])["item"]
    supplier = only_best(draft.call("offers_for", item=scarce), lambda record: record["cost"])["supplier"]
    count = draft.rng.randrange(5, 40)
    draft.call("order", item=scarce, supplier=supplier, store=store, count=count)
    draft.touched.add(scarce)
    draft.given["item"] = scarce
    return f"Order {count} of the item that the {store} store has fewest of, from its cheapest supplier, for that store."


def _level(draft: Draft) -> str:
    item = draft.pick(draft.world.state["items"])
    stock = draft.call("stock_of", item=item)
    most, least = only_best(stock, lambda record: -record["count"]), only_best(stock, lambda record: record["count"])
    count = most["count"] // 2
    if not count:
        raise Unfit
    draft.call("transfer", item=item, source=most["store"], target=least["store"], count=count)
    draft.given["item"] = item
    return f"Move {count} {item}s from the store that has most of them to the one that has fewest."


def _raise_price(draft: Draft) -> str:
    item = draft.given["item"]
    more = draft.rng.randrange(2, 20)
    price = draft.call("get_item", item=item)["price"]
    draft.call("set_price", item=item, price=price + more)
    return f"Then raise the price of that item by {more}."


def _take_off(draft: Draft) -> str:
    item = draft.pick(name for name, record in draft.world.state["items"].items() if record["listed"])
    draft.call("set_listed", item=item, listed=False)
    return f"Take the {item} off the list."


def _ask_total(draft: Draft) -> str:
    item = draft.pick(draft.world.state["items"])
    draft.answer = str(sum(record["count"] for record in draft.call("stock_of", item=item)))
    return f"How many {item}s are there in all stores together?"


GOALS = (
    Goal("restock", _restock, gives="item"),
    Goal("level", _level, gives="item"),
    Goal("raise_price", _raise_price, needs="item"),
    Goal("take_off", _take_off),
    Goal("ask_total", _ask_total, asks=True),
)
