"""Where samples come from.

datasets, archives, text        sets by name, files of archives, words as numbers
parts, given, labels            `Part` and `DataSet`; data that users give; labels of classes
augment                         how images of a batch are changed
"""
