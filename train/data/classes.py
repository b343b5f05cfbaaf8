"""Classes of CIFAR and STL-10: super-classes, and transitions of asymmetric label noise."""

from __future__ import annotations

from collections.abc import Mapping

# Patrini et al. 2017, section 5; the other classes stay clean.
CIFAR10_TRANSITIONS = {
    "truck": "automobile",
    "bird": "airplane",
    "deer": "horse",
    "cat": "dog",
    "dog": "cat",
}

# The same transitions; in STL-10 the automobile is a car, and the monkey stays clean.
STL10_TRANSITIONS = {**CIFAR10_TRANSITIONS, "truck": "car"}

# Krizhevsky 2009; names and order as in the archive.
CIFAR100_SUPER_CLASSES = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
CIFAR100_SUPER_CLASS = {name: above for above, names in CIFAR100_SUPER_CLASSES.items() for name in names}


def next_within(groups: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return transitions from each class to the next of its group, from the last to the first."""
    return {name: names[(i + 1) % len(names)] for names in groups.values() for i, name in enumerate(names)}


CIFAR100_TRANSITIONS = next_within(CIFAR100_SUPER_CLASSES)
