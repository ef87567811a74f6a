"""Why a run ended, from whatever evidence there is: the classes, the patterns with a source each, and the decision."""
