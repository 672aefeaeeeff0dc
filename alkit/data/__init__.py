"""Where samples come from.

datasets, archives, text        sets by name, what archives hold, words as numbers
parts, given, labels            `Part` and `DataSet`; what users give; labels of classes
augment                         how images of a batch are changed
"""
