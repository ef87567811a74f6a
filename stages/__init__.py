"""The shipped pipeline on clips: pretrain, finetune, gate, export, and the training kit they share."""
