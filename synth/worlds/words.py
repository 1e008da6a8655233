"""The words that names are made of: short, common, and none of them a relation or a type of the generated world.

Each should become one token of a tokenizer trained on the world's texts (behind a space), because a small policy learns to
copy a name only where its words are whole tokens.
"""

from __future__ import annotations

_WORDS = """
Able Acid Acorn Agate Alder Alpha Amber Angel Apple April Arch Arrow Ashen Aspen Atlas Azure
Baker Bald Bamboo Bank Bare Barley Barn Basil Bay Beach Bear Beech Bell Bench Berry Birch
Black Blaze Blue Board Bold Bone Boot Bound Brass Brave Bread Brick Bridge Brier Bright Brook
Broom Brown Brush Butter Cabin Calm Camel Candle Canoe Canyon Carbon Castle Cave Cedar Chain Chalk
Cherry Chest Clay Clean Clear Cliff Clock Cloud Clover Coal Coast Cobalt Cold Comet Cool Copper
Coral Cork Corn Cotton Court Cove Crane Cream Creek Crest Crow Crown Crystal Dale Damp Dark
Dawn Deep Deer Delta Desert Dew Door Dove Dragon Dream Drift Drum Dry Dune Dust Eagle
Early East Ebony Echo Edge Elder Elm Ember Empty Falcon Farm Feather Fern Field Finch Fine
Fire Firm Flag Flame Flat Flint Flower Foam Fog Forest Forge Fort Fox Free Fresh Frost
Garden Gate Gem Gentle Giant Glass Glen Globe Gold Grand Granite Grape Grass Gravel Gray Green
Grove Gull Hall Happy Harbor Hard Hare Harp Hawk Hazel Heart Heath Heron Hidden High Hill
Holly Honey Horn Horse House Humble Ice Indigo Iron Island Ivory Ivy Jade Jasper Jolly Jungle
Juniper Keen Kettle Kind King Kite Lake Lamb Lamp Large Lark Laurel Lavender Leaf Lemon Light
Lily Lime Linen Lion Little Lodge Lone Long Loud Low Lucky Lunar Lynx Magic Maple Marble
March Marsh Meadow Mellow Melon Mild Mill Mint Mirror Mist Moon Moss Mount Mountain Myrtle Narrow
Navy New Night Noble North Nut Oak Oasis Oat Ocean Old Olive Onyx Opal Open Orange
Orchid Otter Owl Palm Panda Paper Peach Pearl Pebble Pepper Pine Pink Plain Plum Pond Poplar
Poppy Port Prairie Proud Pure Purple Quail Quartz Quick Quiet Rain Rapid Raven Red Reed Reef
Rich Ridge Ring River Robin Rock Roof Root Rose Rough Round Royal Ruby Rust Saddle Sage
Sail Salt Sand Sapphire Scarlet Shadow Sharp Shell Shore Silent Silk Silver Simple Sky Slate Small
"""

NAME_WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""Distinct words in alphabetical order. Their order and number decide which names are held out: do not change them lightly."""
