"""Prints a digest of everything this room makes: run under several hash seeds by a test."""

from __future__ import annotations

from rl.retrieval.search import SearchIndex
from synth.demonstrations.cold_start import DemonstrationConfig, build_demonstrations
from synth.fas.reasoning import FasConfig, build_fas
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import first_hit
from synth.worlds.world import WorldConfig, generate_world
from warehouse.digests import digest

world = generate_world(WorldConfig(entities=150, prose_variety=3), "train", seed=2)
graph = KnowledgeGraph.of(world)
retrieve = first_hit(SearchIndex(world.documents))
config = QuestionConfig(counts={1: 20, 2: 20, 4: 20}, intersections=0.3, unions=0.3, identify=0.5, variety=3)
tasks, dropped = build_questions(graph, config, 1, retrieve)
demonstrations, _ = build_demonstrations(graph, tasks, DemonstrationConfig(early_stop=0.4, wrong_turn=0.4), 1, retrieve)
fas, rejected = build_fas(graph, FasConfig(plan_slices=20, reasoning={1: 10, 2: 10}, intersections=0.3), 1, retrieve)
layers = QuestionConfig(counts={2: 10, 3: 5}, structure="layerwise", intersections=0.5, unions=0.3)
grown, withered = build_questions(graph, layers, 1, retrieve)
print(digest([[task.digest for task in grown], withered]))
print(digest([world.facts, [task.digest for task in tasks], dropped, demonstrations, fas, rejected]))
