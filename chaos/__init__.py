"""The campaign that attacks the whole product, seeded, and checks what it promises."""
