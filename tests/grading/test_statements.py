"""Which statement of a response is its answer: the last explicit one, and nothing that it denies.

Every kind has responses whose answer equals the gold, and near ones whose answer does not.
"""

import json
import re

import pytest
from helpers import data
from helpers.bounded import bounded
from helpers.paths import FIXTURES

from vinejax.grading.extract import extract_answer, marked_answer
from vinejax.grading.strict.compare import equal_strict

SETS = ("near_miss_negatives", "answer_forms")

RIGHT = {
    "after a box": [
        (r"We get $\boxed{12}$ for one side. So the final answer is 48.", "48"),
        ("\\boxed{x=3}\n\n### Final Answer\n\n9", "9"),
        ("\\boxed{7}\n\n**Answer: $7$**", "7"),
        ("\\boxed{7}\n\nThe answer is positive.", "7"),
        ("\\boxed{7}\n\nThus the answer is 7 cm.", "7"),
        ("\\boxed{7}\n\nThe answer is given in centimetres.", "7"),
        (r"\boxed{7}. This means the answer is smaller than 10.", "7"),
        ("\\boxed{7}\n\nIf the answer is 8, the check fails.", "7"),
        ("\\boxed{7}\n\nCheck: were the answer 8, we'd have 64.", "7"),
        ("\\boxed{7}\n\nThe answer is not 8.", "7"),
        ("\\boxed{\\frac{1}{3}}\n\nThe answer is about 0.33.", "1/3"),
        (r"\boxed{1/3}. The answer is approximately $0.33$.", "1/3"),
        ("\\boxed{5}\n\nHence option (C) is correct.", "C"),
        ("\\boxed{v=3}\n\nC", "C"),
        (r"\boxed{7} is the answer.", "7"),
        (r"\boxed{7} (the answer is 7)", "7"),
        (r"\boxed{5}, so the answer is \boxed{10}", "10"),
        ("The answer is 12.\n\\boxed{5}", "5"),
        ("\\boxed{12}\nAnswer: 36 apples", "36"),
        ("\\boxed{12}\nAnswer: No", "No"),
        ("\\boxed{12}\nThe answer is 3 digits long.", "12"),
        ("\\boxed{12}\nThe answer is 2 times what we had.", "12"),
        ("\\boxed{12}\nSo the answer to the question is 36.", "36"),
        (r"\boxed{12} per day. The final answer is: $\boxed{84}$", "84"),
        ("\\boxed{12}\n\nFinal answer: see above.", "12"),
        ("\\boxed{12}\n\nThe answer is in the box.", "12"),
        ("\\boxed{12}\n\nThe answer is 12, as required.", "12"),
        ("<answer>5</answer> The answer is 5.", "5"),
        ("<answer>12</answer>\nWait, the final answer is 36.", "36"),
        ("\\boxed{12}\n\nNote: the answer is even.", "12"),
        ("\\boxed{12}\n\n**Answer:** $x = 12$", "12"),
        ("\\boxed{12} \nDoes the answer make sense? The answer is reasonable.", "12"),
        ("\\boxed{3}\n\nThe answer is a prime number, as 3 is prime.", "3"),
        ("\\boxed{45}\n\nSo the answer is $45^\\circ$.", "45"),
        ("\\boxed{B}\n\nThe answer is B because 12 > 3.", "B"),
        (r"\boxed{12}. I am confident the answer is right.", "12"),
        (r"\boxed{12}. The correct answer is therefore 36.", "36"),
    ],
    "a name with abbreviations": [
        ("<answer>St. Louis</answer>", "St. Louis"),
        ("The answer is Dr. Smith. He was there.", "Dr. Smith"),
        ("<answer>John F. Kennedy</answer>", "John F. Kennedy"),
        ("<answer>J.K. Rowling. She wrote it.</answer>", "J.K. Rowling"),
        ("The answer is John F. Kennedy.", "John F. Kennedy"),
        ("Answer: **George H. W. Bush**. He won.", "George H. W. Bush"),
        ("The answer is John F. Kennedy because he won.", "John F. Kennedy"),
        ("The answer is B. Because it fits.", "B"),
        ("The answer is C. John F. Kennedy.", "C"),
        ("The answer is B. Paris", "B"),
        ("The answer is Statement B. True.", "Statement B"),
        ("The answer is Vitamin C. Oranges have it.", "Vitamin C"),
        ("The answer is Point B.\nDone.", "Point B"),
        ("<answer>St. Louis. It is a city.</answer>", "St. Louis"),
        ("<answer>option F. Because of it</answer>", "option F"),
        ("The answer is point F. Energy is kept.", "point F"),
        ("The answer is 5 ft. It fits.", "5 ft"),
    ],
    "a phrase after the value": [
        ("The answer is 18, since she sells 9 at 2 each.", "18"),
        ("Answer: 18, which means she earns 18 dollars.", "18"),
        ("The answer is 18 dollars, as she sells the rest.", "18"),
        ("The answer is $18, after taxes.", "18"),
        ("The answer is 3/8, in lowest terms.", "3/8"),
        ("The answer is 3/8 in lowest terms.", "3/8"),
        ("The answer is 18 in total.", "18"),
        ("The answer is 18, including tax.", "18"),
        ("So the answer is 18, because that's what remains.", "18"),
        ("The answer is 18 (after rounding).", "18"),
        ("The answer is 18 - she sold them all.", "18"),
        ("The answer is 18 — nothing else fits.", "18"),
        ("The answer is 18; nothing else fits.", "18"),
        ("The answer is 18. Nothing else fits.", "18"),
        ("The answer is exactly 18.", "18"),
        ("The answer is therefore 18.", "18"),
        ("The answer is then simply 18.", "18"),
        ("The answer is indeed 18.", "18"),
        ("The answer is 2, 3 and 5, which are the primes.", "2,3,5"),
        ("The answer is x = 4, y = 5, which checks.", "x=4,y=5"),
        ("The answer is (3, 4), as both equations hold.", "(3,4)"),
        ("The answer is [2, 5), which includes 2.", "[2,5)"),
        ("The answer is 5 hours, 20 minutes.", "5 hours 20 minutes"),
        ("The answer is $18$, or eighteen dollars.", "18"),
        ("The answer is 18 square feet, to the nearest foot.", "18"),
        ("The answer is 18 dozen.", "216"),
        ("The answer is x^2, for x > 0.", "x^2"),
        ("The answer is 60 miles per hour, on average.", "60"),
        ("The answer is Paris, which is the capital of France.", "Paris"),
        ("The answer is Tuesday, because 30 mod 7 is 2.", "Tuesday"),
        ("The answer is even, since it ends in 2.", "even"),
        ("The answer is 1,250 dollars, before tax.", "1250"),
        ("The answer is 64, namely 8 times 8.", "64"),
        ("The answer is 64, that is 8 squared.", "64"),
        ("The answer is 64 = 8^2.", "64"),
        ("The answer is -5, the smaller root.", "-5"),
        ("The answer is 10, not counting the first.", "10"),
        ("The answer is 7 (counting both ends).", "7"),
        ("Answer: 64.", "64"),
        ("ANSWER: 64", "64"),
        ("The answer is 64!", "64"),
        ("The answer is 64 !", "64"),
        ('The answer is "64".', "64"),
        ("The answer is '64'.", "64"),
        ("The answer is **64**, as shown.", "64"),
        ("The answer is *64*.", "64"),
        ("The answer is `64`.", "64"),
        ("The total is 45, which is the answer.", "45"),
        ("45 is the answer.", "45"),
        ("Thus the answer is 6! = 720.", "720"),
        ("The answer is 6! ways.", "720"),
    ],
    "choices": [
        ("The answer is (B).", "B"),
        ("I'd pick B.", "B"),
        ("I would choose option D.", "D"),
        ("So the best choice is A.", "A"),
        ("So, the answer is option D.", "D"),
        ("Final Answer: Option C", "C"),
        ("The correct option is (A) 12", "A"),
        ("The correct answer is option B: 12 m", "B"),
        ("Thus (E).", "E"),
        ("Therefore the answer must be E.", "E"),
        ("...\n\n(B)", "B"),
        ("...\n\n\\textbf{(B)}", "B"),
        ("...\n\n$\\textbf{(B)}$", "B"),
        ("...\n\n**(B)**", "B"),
        ("...\n\nB)", "B"),
        ("...\n\n[B]", "B"),
        ('...\n\n"B"', "B"),
        ("Eliminate A, B and C, leaving D.", "D"),
        ("The correct answer is D, All of A, B and C.", "D"),
        ("The answer is D: all of the above", "D"),
        ("Answer: **C**", "C"),
        ("Answer: (C) friction", "C"),
        ("Answer: C. friction", "C"),
        ("**Correct Answer:** C", "C"),
        ("Selected option: C", "C"),
        ("Correct option - C", "C"),
        ("Option: C", "C"),
        ("My final choice is C.", "C"),
        ("C is the correct answer.", "C"),
        ("C is the best answer.", "C"),
        ("Statement C is true.", "C"),
        ("The mass grows, which is choice D.", "D"),
        ("This matches option D.", "D"),
        ("This corresponds to choice (D).", "D"),
        ("which is option (B), 12 cm.", "B"),
        ("The answer is A. Not B.", "A"),
        ("...\n\nAnswer\n\nC", "C"),
        ("Therefore the correct letter is F.", "F"),
        ("ANSWER: J", "J"),
        ("The answer is therefore (J).", "J"),
        (r"\boxed{\text{J}}", "J"),
        (r"\boxed{(J) 15}", "J"),
        (r"\boxed{\text{A: the force}}", "A"),
    ],
    "letters in prose": [
        ("A and B work 4 days. Then only B works for 6 days. The total is 10 days.", "10"),
        ("Since angle C is right, AB = 13.", "13"),
        ("A bus leaves A, and drives 3 hours at 60 mph. The distance is 180 miles.", "180"),
        ("If we choose A, 3 remain. In total there are 10 ways.", "10"),
        ("The answer is 24, because angle B is right.", "24"),
        ("\\boxed{180}\nHere a bus leaves A, and drives 3 hours.", "180"),
        ("\\boxed{24}\nNote that angle B is right.", "24"),
        ("\\boxed{A}. No: only C works.", "C"),
        ("The answer is A. No, B is right.", "B"),
        ("The answer is one of these. Only B works.", "B"),
        ("\\boxed{12}\nSo I choose B.", "B"),
        ("I'd pick C. The others give 3 and 4.", "C"),
        ("We choose B because 3 + 4 = 7.", "B"),
        ("Only B works: 12 is even.", "B"),
    ],
    "money": [
        ("The answer is $20 - $5 = $15.", "15"),
        ("The answer is $2.50 - $.50 = $2.00.", "2"),
        ("\\boxed{15}\nThe answer is $20-$5=$15.", "15"),
        ("\\boxed{18}\nThe answer is $18. She sells 9 eggs at $2 each.", "18"),
        ("The answer is $18\nHe has $x$ dollars left.", "18"),
        ("The answer is $18, which is $2 per egg.", "18"),
        ("The answer is $20, so $x = 20$.", "20"),
        ("The answer is $3 and $4.", "3, 4"),
        ("The answer is $3 \\cdot \\$5 = \\$15$.", "15"),
        ("The answer is $5 apples $ in $2$ boxes.", "5"),
        ("<answer>$18. She sells 9 eggs at $2 each.</answer>", "18"),
    ],
    "what is denied": [
        ("The answer is 8, rather than 6.", "8"),
        ("It's 8 — not 6.", "8"),
        ("She has 8 apples, not 6 apples.", "8"),
        ("The answer is $8$ (not $6$).", "8"),
        ("not $6$ but $8$", "8"),
        ("The result is 8 and not 6.", "8"),
        ("We get 8 as opposed to 6.", "8"),
        ("6 is wrong; it is 8.", "8"),
        ("6 is wrong. The answer is 8.", "8"),
        ("Not 6, but 8.", "8"),
        ("The answer cannot be 6, so it is 8.", "8"),
        ("The answer is neither 6 nor 7 but 8.", "8"),
        (r"\boxed{8} instead of \boxed{6}", "8"),
        (r"It is \boxed{8}. It is not \boxed{6}.", "8"),
        (r"$\boxed{8}$ and not $\boxed{6}$", "8"),
        (r"\boxed{6} is incorrect, \boxed{8} is correct.", "8"),
        (r"\boxed{8} is correct and \boxed{6} is incorrect.", "8"),
        ("The answer is 8, not -8.", "8"),
        ("The answer is -8, not 8.", "-8"),
        ("The answer is 1/2, not 0.6.", "1/2"),
        ("We have x = 3 and not x = 5.", "3"),
        ("The answer is 8 dollars instead of 6 dollars.", "8"),
        ("The answer is false, not true.", "false"),
        ("The answer is blue, not red.", "blue"),
        ("The answer is C, not B or D.", "C"),
        ("The answer is D and not A.", "D"),
        ("B is wrong, so the answer is C", "C"),
        ("Not C but A.", "A"),
        ("The answer is not (A) but (C).", "C"),
        ("While some may think the answer is 6, it is 8.", "8"),
        ("A common wrong answer is 6. The answer is 8.", "8"),
        ("There are 15 of them, excluding 12.", "15"),
        ("The answer is 12, which is not 15.", "12"),
        ("The answer is **12**, not **15**.", "12"),
        ("The answer is **not** 15 but **12**.", "12"),
        ("It is **12**; **15** is wrong.", "12"),
    ],
    "dashes": [
        ("Final Answer – 36", "36"),
        ("Answer — B", "B"),
        ("**Answer** – 12", "12"),
        ("Answer -- 12", "12"),
        ("Answer --- 12", "12"),
        ("Answer: -12", "-12"),
        ("Answer: - 12", "-12"),
        ("Answer -12", "-12"),
        ("The answer is -12", "-12"),
        ("The answer is - 12", "-12"),
        ("Answer → 12", "12"),
        ("Answer => 12", "12"),
        ("Answer - -12", "-12"),
        ("Answer – −12", "-12"),
        ("Result - 12", "12"),
        ("Total cost – 12", "12"),
        ("Total: -12", "-12"),
        ("x = - 12", "-12"),
        ("so x equals - 12", "-12"),
        ("we get - 12", "-12"),
        (r"Answer - $\frac{1}{2}$", "1/2"),
        ("Answer - x = 5", "5"),
        ("Answer- 12", "12"),
        ("Answer: 5 - 12", "-7"),
        ("The profit - 12 dollars", "12"),
        ("The answer - 12 - is even", "12"),
        ("final answer - (A)", "A"),
        ("The temperature is - 12 degrees", "-12"),
    ],
    "lists": [
        ("The answer is:\n- 12", "12"),
        ("The answer is:\n-12", "-12"),
        ("**Answer:**\n\n- **12** apples", "12"),
        ("### Final Answer\n\n- $x = 3$\n- $y = 4$", "x=3, y=4"),
        ("The answers are:\n1. 12\n2. 15", "12, 15"),
        ("The answers are:\n* 12\n* 15", "12, 15"),
        ("The answer is:\n- 12, as $3\\cdot4=12$\n- which is even", "12"),
        ("The answer is:\n- Monday\n- since it rains", "Monday"),
        ("The answer is:\n- $12$ apples\n- So each of the 4 children gets 3 apples.", "12"),
        ("### Final Answer\n---\n12", "12"),
    ],
    "emphasis": [
        ("The answer is **12** apples.", "12"),
        ("The answer is a total of **12** apples.", "12"),
        ("**The answer is 12** apples.", "12"),
        ("Answer: *12* cm", "12"),
        ("The answer is __12__ apples", "12"),
        ("The answer is `12` apples", "12"),
        ("The answer is **$12** per day.", "12"),
        ("The answer is **x = 3** and **y = 4**.", "x=3, y=4"),
        ("The answer is: **C)** 12 apples", "C"),
        ("<answer>**12** apples</answer>", "12"),
        ("The answer is **-12**%.", "-12"),
        ("The answer is **2**10**", "1024"),
        ("The answer is 2 ** 10.", "1024"),
        ("The answer is 3 * 4 * 5.", "60"),
        ("The answer is a^{*} + b^{*}", "a^{*} + b^{*}"),
    ],
    "parts": [
        ("**(a)** \\boxed{3}\n\n**(b)** \\boxed{5}", "3, 5"),
        ("(a) $x = \\boxed{3}$\n(b) $y = \\boxed{5}$", "3, 5"),
        ("Part 1: \\boxed{3}\nPart 2: \\boxed{5}", "3, 5"),
        (r"a: \boxed{3}; b: \boxed{5}", "3, 5"),
        (r"\boxed{\text{(i) }3; \text{(ii) }5}", "3, 5"),
        (r"\boxed{(a) 3 \quad (b) 5}", "3, 5"),
        (r"\boxed{\text{(a)}~3,~\text{(b)}~5}", "3, 5"),
        (r"\boxed{a = 3, b = 5}", "3, 5"),
        (r"\boxed{(a) 3, (b) 5}", "(a) 3, (b) 5"),
        ("The answers are (a) 3 and (b) 5.", "3, 5"),
        ("The answers are: (a) 3, (b) 5.", "3, 5"),
        ("Answer: (i) 3, (ii) 5", "3, 5"),
        (r"(a) \boxed{3}, (b) \boxed{5}, (c) \boxed{7}", "3,5,7"),
        ("1) \\boxed{3}\n2) \\boxed{5}", "5, 3"),
        (r"(a) \boxed{3} (b) \boxed{(1,2)}", "3, (1,2)"),
        (r"(a) \boxed{1, 2} (b) \boxed{5}", "1, 2, 5"),
        ("Part (a): The area is $\\boxed{3}$.\n\nPart (b): The perimeter is $\\boxed{5}$.", "3, 5"),
        (r"(a) We have $\boxed{3}$. (b) Hence, $\boxed{5}$.", "5"),
        ("1. \\boxed{3}\n2. \\boxed{5}", "3, 5"),
        (r"Case (i): \boxed{3}. Case (ii): \boxed{5}.", "3, 5"),
        (r"(a)(i) \boxed{3} (ii) \boxed{5}", "3,5"),
        (r"\boxed{3} for (a) and \boxed{5} for (b)", "3, 5"),
        (r"For part (a), \boxed{3}; for part (b), \boxed{5}.", "3, 5"),
        ("Part A: \\boxed{3}\nPart B: \\boxed{5}", "3, 5"),
        ("First answer: \\boxed{6}\nSecond answer: \\boxed{10}", "6,10"),
    ],
}
WRONG = {
    "after a box": [
        (r"We get $\boxed{12}$ for one side. So the final answer is 48.", "12"),
        ("\\boxed{7}\n\nThe answer is not 8.", "8"),
    ],
    "a phrase after the value": [
        ("The answer is 18, or so I think.", "18"),
        ("The answer is 18, plus or minus 1.", "18"),
        ("The answer is 18, less 3.", "18"),
        ("The answer is 18, at most.", "18"),
        ("The answer is 18, no wait, 19.", "18"),
        ("The answer is 18, no wait, 19.", "19"),
        ("The answer is 18 or 19.", "18"),
        ("The answer is 18 or 19.", "19"),
        ("The answer is 18, 19.", "18"),
        ("The answer is between 18 and 19.", "18"),
        ("The answer is between 18 and 19.", "19"),
        ("The answer is 18, thousand.", "18"),
        ("The answer is 18, million of them.", "18"),
        ("The answer is 18 dozen.", "18"),
        ("The answer is 12, if x is even.", "12"),
        ("The answer is -5, the smaller root.", "5"),
        ("The answer is 7 (mod 10).", "7"),
        ("the answer is 3 apples and 2 pears", "3"),
        ("The answer is 6! ways.", "6"),
    ],
    "choices": [
        ("A. 12\nB. 13\nC. 14", "C"),
        ("A) red\nB) blue", "B"),
        ("Either A or B.", "B"),
        ("I can't decide between A and B.", "B"),
        ("It's not C.", "C"),
        ("So it can't be D.", "D"),
        ("We can rule out B.", "B"),
        ("Eliminate A, B and C.", "C"),
        ("Option A is incorrect.", "A"),
        ("Only A fails.", "A"),
        ("The answer is A or B.", "A"),
        ("The answer is neither A nor B.", "A"),
        ("I choose A and B.", "B"),
        ("Choose A = 5 as the base.", "A"),
        ("Let A be the set.", "A"),
        ("...so it is I", "I"),
    ],
    "money": [
        ("The answer is $20 - $5.", "20"),
        ("The answer is $20 - $5 = $16.", "16"),
        ("The answer is $3 and $4.", "3"),
    ],
    "what is denied": [
        ("The answer is 8, rather than 6.", "6"),
        ("It's 8 — not 6.", "6"),
        ("Not 6.", "6"),
        ("It is never 6.", "6"),
        ("So 6 is not the answer.", "6"),
        ("The answer cannot be 6.", "6"),
        ("The answer isn't 6.", "6"),
        ("The answer is neither 6 nor 7.", "7"),
        (r"\boxed{8} instead of \boxed{6}", "6"),
        (r"It is \boxed{8}. It is not \boxed{6}.", "6"),
        ("The answer is 8, not -8.", "-8"),
        ("x is not equal to 5", "5"),
        ("The answer is blue, not red.", "red"),
        ("Answer: B is wrong", "B"),
        ("It is 8, 6 would be too small.", "6"),
        ("The wrong answer is 6.", "6"),
        ("The answer is 12, which is not 15.", "15"),
    ],
    "bold denials": [
        ("**13** is wrong.", "13"),
        ("It is 12 and not **13**.", "13"),
    ],
    "dashes": [
        ("Result - 12", "-12"),
    ],
    "lists": [
        ("The answer is:\n- 12", "-12"),
        ("The answers are:\n1. 12\n2. 15", "1"),
        ("The answers are:\n* 12\n* 15", "12"),
        ("**Answer:**\n- Apples: 12\n- Pears: 15", "12"),
    ],
    "parts": [
        ("(a) 3\n(b) 5", "3, 5"),
        (r"\boxed{(a) 3, (b) 5}", "5, 3"),
        (r"(a) \boxed{3}, (b) \boxed{5}", "5, 3"),
        (r"(i) \boxed{3} (ii) \boxed{5}", "5, 3"),
        (r"\boxed{(a) 3, (b) 5}", "5"),
        (r"(a) \boxed{3}, (b) \boxed{5}", "5"),
        (r"(a) \boxed{3}, (b) \boxed{5}", "3"),
    ],
}


TAKEN_BACK = [
    "The answer is 42. Wait, it is 43.",
    "The answer is $42$. Hold on, I forgot one: 43.",
    "The answer is 41. The answer is 42... wait, no, 43.",
    "The answer is 42, no, it is 43.",
]


def verdict(response: str, gold: str) -> bool:
    answer = extract_answer(response)
    return answer is not None and equal_strict(answer, gold)


@pytest.mark.parametrize("kind", RIGHT)
def test_the_statement_that_counts(kind: str) -> None:
    assert [pair for pair in RIGHT[kind] if not verdict(*pair)] == []


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_statement(kind: str) -> None:
    assert [pair for pair in WRONG[kind] if verdict(*pair)] == []


@pytest.mark.parametrize("response", TAKEN_BACK)
def test_an_answer_that_is_taken_back(response: str) -> None:
    assert not verdict(response, "42") and not verdict(response, "41")
    assert verdict(f"{response} So the answer is 42.", "42")


@pytest.mark.parametrize(
    "piece",
    [
        "not 1 ",
        "not ",
        "1 is wrong ",
        "rules out A, ",
        "$1$, ",
        "(",
        "1, ",
        "the answer is not 1. ",
        "*",
    ]
    + [
        "B. ",
        "Answer - ",
        "(a) ",
        r"(a) \\boxed{1} ",
        "option A ",
        "the answer is 1, which ",
        "答案",
        "is ",
    ],
)
def test_long_responses_take_no_time(piece: str) -> None:
    with bounded(piece):
        extract_answer(piece * (40_000 // len(piece)))
        extract_answer("5" + piece * (40_000 // len(piece)) + "5")


# A response around a prediction P, where the gold is G; a wrong P may never be credited.
AROUND = [
    "The answer is P.",
    "The answer is $P$, as required.",
    "**Final Answer:** $P$",
    "Final answer - $P$",
    "The answer is P, which is the total.",
    "\\boxed{q}\n\nThe final answer is $P$.",
    "<answer>P</answer>",
    "(a) \\boxed{P}",
]
CONTRASTED = [
    "\\boxed{P}, not \\boxed{G}",
    "The answer is $P$, not $G$.",
    "The answer is not $G$ but $P$.",
    "It is not G. The answer is P.",
    "\\boxed{P}. The answer is not $G$.",
    "The answer is P instead of G.",
    "G is wrong. The answer is P.",
]


def around(template: str, prediction: str, gold: str) -> str:
    return "".join(
        {"P": prediction, "G": gold}.get(part, part) for part in re.split("([PG])", template)
    )


def pairs_of_the_sets() -> list[tuple[str, str, bool]]:
    found = [row for name in SETS for row in data.rows(f"grading/{name}")]
    for name in ("grading_cases", "grading_kinds"):
        lines = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        found += map(json.loads, lines)
    # At the end of a sentence 5! is 5, and an empty answer or one with a box has no such frame.
    rows = [row for row in found if row["expected"] is not None and row["prediction"].strip()]
    rows = [
        row for row in rows if row["prediction"][-1] != "!" and "boxed" not in row["prediction"]
    ]
    return [(row["prediction"], row["gold"], row["expected"]) for row in rows]


def test_no_response_makes_a_near_miss_right() -> None:
    near = [(p, gold) for p, gold, is_same in pairs_of_the_sets() if not is_same]
    assert len(near) > 650
    templates = AROUND + CONTRASTED
    tried = [
        (around(templates[(i + k) % len(templates)], *pair), pair[1])
        for i, pair in enumerate(near)
        for k in (0, 5, 9)
    ]
    assert [pair for pair in tried if verdict(*pair)] == []


def test_a_response_around_a_right_answer_is_right() -> None:
    same = [(p, gold) for p, gold, is_same in pairs_of_the_sets() if is_same]
    tried = [(around(AROUND[i % len(AROUND)], *pair), pair[1]) for i, pair in enumerate(same)]
    wrong = [pair for pair in tried if not verdict(*pair)]
    assert len(wrong) <= 0.01 * len(tried), wrong


def test_what_follows_a_tag_decides_between_the_tag_and_a_later_statement() -> None:
    text = "<answer>4\n5</answer> The answer is 4."
    assert marked_answer(text) == "4\n5" and extract_answer(text) == "4"
    assert marked_answer(text + r" \boxed{6}") == extract_answer(text + r" \boxed{6}") == "6"
