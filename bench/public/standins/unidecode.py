"""Stand-in for unidecode: text in ASCII stays as it is."""


def unidecode(text: str) -> str:
    return text
