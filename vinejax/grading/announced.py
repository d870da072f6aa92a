"""Finds the answer that a phrase announces: 'the answer is 5', 'Final answer - B', 'Ответ: 5'.

Texts come with denied answers masked (`mask_denied` in `strict/english/denials.py`).
"""

import re
from typing import NamedTuple

from vinejax.grading.clauses import affirmed
from vinejax.grading.dress import MAX_TAIL, undressed, without_emphasis, words_of
from vinejax.grading.prose import NUMBER, last_number
from vinejax.grading.strict.english.denials import DENIED
from vinejax.grading.strict.english.quantities import spoken_number

_MAX_PHRASES = 20  # announcements examined, starting with the last
MAX_WORDS = 3  # words beside a number in an answer: '5 square feet and'

# 'Answer: 5', 'Answer = 5', 'Answer - 5'; but the sign of 'answer -5' is a minus
_SIGN = r"(?:[\s*_)\]]*(?:[:：=⇒→]|=>)|[ \t*_)\]]*[-–—]{1,3}>?(?=[\s*_]))"
_IS = (
    r"(?:is|are|(?:must|has to|have to|will|can only) be|equals|turns out to be|comes? (?:out )?to)"
    r"\b"
)
_QUESTION = r"(?:\s+(?:to|for|of)\s+(?:the|this)\s+(?:whole\s+|given\s+)?(?:question|problem))?"
# 'answer' and 'the answer is' in the languages of MGSM and MATH's translations
_FOREIGN = "|".join(
    rf"(?:{noun})[^\S\n]*(?:(?:{verb})(?![^\W\d_])|{_SIGN})"
    for noun, verb in [
        (r"\bantwort", "lautet|ist|beträgt"),
        (r"\b(?:respuesta|respuesta final)", "es|son"),
        (r"\b(?:réponse|réponse finale)", "est|sont"),
        (r"\b(?:resposta|resposta final)", "é|são"),
        (r"\b(?:risposta|risposta finale)", "è"),
        (r"\b(?:antwoord)", "is"),
        (r"\bответ", "равен"),
        (r"\bjibu", "ni"),
        (r"\bjawaban(?:nya)?", "adalah"),
        (r"\b(?:đáp án|đáp số|câu trả lời)", "là"),
        (r"উত্তর(?:টি)?", "হল|হলো|হলঃ"),
        (r"सही उत्तर|उत्तर", "है"),
        (r"సమాధానం", "అనేది"),
        (r"(?:الإجابة|الجواب)(?: النهائي[ةه]?)?", "هي|هو"),
    ]
)
_FOREIGN += (  # in these languages no space follows the verb
    rf"|答案[^\S\n]*(?:就?是|应?[为為]|應為|等于|{_SIGN})|答え?[^\S\n]*(?:は|{_SIGN})"
    rf"|(?:정답|답)[^\S\n]*(?:은|는|{_SIGN})|คำตอบ(?:สุดท้าย)?[^\S\n]*(?:คือ|{_SIGN})"
)
_PHRASE = re.compile(
    rf"(?i)(?<![A-Za-z])(?:(?:final\s+(?:answer|result)|answer)s?{_QUESTION}"
    rf"(?:\s*{_IS}|{_SIGN}|\*\*(?=\s)|\s*(?={DENIED}))"
    rf"|(?:option|choice)(?=\s+is\b)\s+is\b|{_FOREIGN})"
    r"|(?im:^[ \t#*_]*(?:(?:the|my)\s+)?(?:final\s+)?answers?[ \t*_]*$)"
)
# The words before a phrase that make it no statement: 'if the', 'the wrong', 'check whether the'.
_NOT_STATED = re.compile(
    r"(?i)(?:\b(?:some|someone|many|people|students?|one|you|they|he|she)\s+(?:\w+\s+)?(?:think"
    r"|thought|believed?|guess(?:ed)?|says?|said|claim\w*|expect(?:ed)?)\b[^.,;:\n]*"
    r"|\b(?:if|suppose|supposing|assum\w+|whether|unless|when|why|doubt|that case)\b[^.,;:\n]*"
    r"|\b(?:wrong|incorrect|previous|earlier|initial|tempting|intermediate|naive|partial|student'?s?)"
    r"\s+(?:final\s+)?)\Z"
)
_SUPPOSED = re.compile(r"(?i)\b(?:if|suppose|supposing|assum\w+|had|were)\b[^.;:\n]*\Z")
# 'The answer is correct' judges an answer and gives none.
_JUDGED = re.compile(
    r"(?i)(?:[a-z]+ly |indeed |also )?(?:correct|right|valid|verified|confirmed|consistent"
    r"|reasonable)(?:,| and\b| with\b| by\b|$)"
)
# So does 'the answer is an integer', if another statement gives the answer.
_DESCRIBED = re.compile(
    r"(?i)(?:an?|the|less|greater|more|smaller|larger|at|between|in|not|also|always|indeed|very|quite"
    r"|positive|negative|even|odd|prime|unique|clear|obvious|rounded|given|found|obtained|expressed"
    r"|written|shown|above|below|boxed|simplified|irrational|rational|real|finite|integer|whole)\b"
)
_FIRM = re.compile(
    r"(?i)[-−+±]?\s?(?:\\?[$€£]?\s?[\d.(\[{½⅓⅔¼¾√]|\\(?!text|approx|sim|[lg]e|ne|in(?![a-z])))"
    r"|[-−]?[a-zα-ω]\b(?![ ']\w)|(?-i:\(?[A-J]\)?)(?![\w'])|(?:yes|no|true|false)\W*\Z"
)
_FORMULA = re.compile(r"\$+(?:\\.|[^$\\])+\$+|\\\(.*?\\\)|\\\[.*?\\\]")
_VALUE = re.compile(r"[\d$\\]")
_BOUND = re.compile(
    r"[$\\(\[\s]*(?:[<>≤≥≈]|\\(?:approx|sim|[lg]t|[lg]eq?|[lg]eqslant)(?![A-Za-z]))"
)
_LOOSE = re.compile(
    r"(?i)(?<!\\)\b(?:times|digits?|if|when|unless|than|less|more|fewer|at (?:least|most)|or so)\b"
    r"|\bof the\b|[<>]"
)
_ROUGHLY = re.compile(r"(?i)(?:approximately|about|around|roughly|close|nearly|almost|\\?approx|≈)")
_CONTENT = re.compile(r"[^\W_]|[∞∅√]")
_CLOSERS = {
    opener: re.compile(rf"(?<!\\){re.escape(closer)}")
    for opener, closer in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
}
# A sign ! before a word in lower case is a factorial: '6! ways'.
_SENTENCE_END = re.compile(
    rf"\n|[.?](?=\s|$)|!(?=\s*$|\s+[^a-z\s=+*/×·^{DENIED}-])|[。！？]"
    r"|(?<=\S)(?<!\bor)\s+(?:because|since|as|so)\s"
)
# Abbreviations, and initials such as those of 'John F. Kennedy', whose period ends no sentence if
# a name follows. An initial looks like a choice, so outside of `<answer>` it counts only in an
# answer that is nothing but a name (`_PERSON`), and not in 'Vitamin C. Oranges have it.'
_TITLE = re.compile(r"\b(?:Dr|Mr|Mrs|Ms|St|Mt|Ft|Lt|Sgt|Gen|Col|Rev|Gov|Sen|Prof|Capt)\Z", re.ASCII)
_INITIAL = re.compile(r"(?<!ption )(?<!hoice )(?<!nswer )\b[A-Z]\Z", re.ASCII)
_NAME = re.compile(r"\s+(?!(?:It|This|That|The|So|As|Because|Since|Therefore)\b)[^\W\d_a-z]")
_WORD = r"(?!(?:[Oo]ption|[Cc]hoice|[Aa]nswer|Statement|True|False|Yes|No|Therefore|Hence|Thus)\b)"
_WORD += r"[^\W\d_a-z][\w'’-]+"
_PERSON = re.compile(
    rf"(?:{_WORD}[^\S\n]+)+(?:[A-Z]\.[^\S\n]+)+{_WORD}(?:[^\S\n]+{_WORD})?"
    r"(?=[*\"”')]*(?:[.?]?\s*(?:\n|\Z)|[.?]\s|\s+(?:because|since|as|so)\s))"
)
_FOREIGN_WORD = re.compile(r"[^\W\d_A-Za-zα-ωΑ-Ωª-º]")
_JOINT = re.compile(r"\s*(?:[,;]\s*(and|or)\b|[,;&]|(and|or)\b)\s*")
_SPAN = re.compile(r"\$([^$]+)\$")
# The sign of a sum of money, which opens no formula: the next `$` stands before a digit, as in
# '$20 - $5', or behind a word and a space, as in '$20, so $x = 20$', or the amount ends a sentence
# or a line.
_MONEY = re.compile(
    r"(?<![\\$])\$(?=\.?\d(?:[^$\n]*(?<!\\)\$\.?\d|[^$\\\n]*[a-z]{2}[ (]+\$[\w\\]"
    r"|(?:[\d,.]*\d)?(?:[.!?]?[ \t]*\n|[.!?]\s+[A-Z])))"
)
_START = re.compile(
    r"[\s:：*=_#`⇒→>]+|-{3,}(?=\s)|(?i:(?:just|only|simply|exactly|precisely|clearly|indeed|then"
    r"|therefore|thus|hence|now|also|finally|obviously|an?\s+total\s+of)\s)"
)
_ITEM = re.compile(r"\s*(?:[-–—•*+]|(?P<number>\d{1,2})[.)])\s+(?P<text>\S.*)")  # of a list
# 'The answer is not 12. It is 15.', 'is not 12 but 15', 'rules out C, leaving D'
_CORRECTED = re.compile(
    rf"{DENIED}[{DENIED}\s.,;:*]*(?i:(?:(?:but|rather|instead|so|hence|thus|and)\b[\s,]*)*"
    r"(?:it(?:['’]s|\s+is|\s+must be)|(?:the\s+)?(?:correct|right|actual)?\s*(?:answer|one)\s+is"
    r"|which leaves|leaving|this leaves|only)?)\s+"
)
# 'The answer is 42. Wait, it is 43.'
_TAKEN_BACK = re.compile(
    r"(?i)[^\n]{0,200}?(?:[.!?…]+|[,;–—-])\s*(?:wait|hold on|oops|correction|hmm+"
    r"|scratch that|no, (?:it|that))\b"
)


class Announced(NamedTuple):
    answer: str
    start: int  # where the phrase starts
    is_firm: bool  # whether it is a value, a choice, yes or no, and stated without condition


def announced(text: str) -> tuple[Announced | None, str | None, int]:
    """The last answer that a phrase announces, the last judgement, and where to look without one.

    A judgement, such as 'correct', is announced like an answer, and a description, such as 'an
    integer', counts only if no phrase announces anything else. The last result is the index
    after the last announcement if that one only denies an answer or is taken back, else 0.
    """
    judged, described, start = None, None, 0
    phrases = [*_PHRASE.finditer(text)][-_MAX_PHRASES:]
    for phrase in reversed(phrases):
        before = text[max(0, phrase.start() - 80) : phrase.start()]
        if _NOT_STATED.search(before):
            continue
        tail = text[phrase.end() : phrase.end() + MAX_TAIL]
        if _TAKEN_BACK.match(tail):
            return described, judged, phrase.end()
        answer = after_phrase(tail)
        if not _CONTENT.search(answer):
            if DENIED in tail[:20] and not start:
                start = phrase.end()
            continue
        is_firm = _is_firm(answer, _MONEY.sub("", tail)) and not _SUPPOSED.search(before)
        found = Announced(answer, phrase.start(), is_firm)
        if _JUDGED.match(answer):
            judged = judged or answer
        elif _DESCRIBED.match(answer) and not re.search(r"[\d$\\]", answer):
            described = described or found
        else:
            return found, judged, 0
    return described, judged, 0 if described else start


def _is_firm(answer: str, tail: str) -> bool:
    """Whether an answer is a value, a choice, yes or no, without words that leave it open."""
    sentence = affirmed(_first_sentence(tail))
    bare = _START.sub("", sentence, count=1)
    formula = _FORMULA.match(bare)
    is_loose = _LOOSE.search(_FORMULA.sub("", sentence)) or _ROUGHLY.match(bare)
    if is_loose or _DESCRIBED.match(bare) or _BOUND.match(bare) or "boxed" in answer:
        return False
    return bool(formula or _FIRM.match(answer)) or spoken_number(answer) is not None


def after_phrase(tail: str, is_tagged: bool = False) -> str:
    """The answer in `tail`, the text that follows 'answer is', or with `is_tagged` `<answer>`.

    The items of a list or the formulas at the start of `tail` are the answer. Without them it is in
    the first sentence, up to a clause that says more about it (`affirmed`).
    """
    tail = _MONEY.sub("", without_emphasis(tail))
    if listed := _listed_answers(tail):
        return listed
    while start := _START.match(tail) or _CORRECTED.match(tail):
        tail = tail[start.end() :]
    if formulas := _formulas_at_start(tail):
        return formulas
    sentence = affirmed(_first_sentence(tail, is_tagged))
    # 'The final answer: the largest $n$ is 34.'
    sentence = sentence.rpartition(" is ")[2]
    sentence = _last_spans(sentence) or sentence
    numbers = NUMBER.findall(sentence)
    says_more = (words_of(sentence) or 0) > MAX_WORDS or _FOREIGN_WORD.search(sentence)
    if len(numbers) == 1 and says_more:
        return last_number(sentence) or undressed(sentence)  # 'Jane grew it 3 hours ago.'
    return undressed(sentence)


def _listed_answers(tail: str) -> str:
    """The answers in a list that begins on the next line, separated by commas; '' without a list.

    Items without a value, or with many words beside it, count only if all items are such, and then
    the first does. A list with numbers has two items at least and begins with 1: else the number
    may be the answer itself.
    """
    first, *lines = tail.split("\n")
    if first.strip(" \t:：*_#`"):
        return ""
    items: list[re.Match[str]] = []
    for line in filter(str.strip, lines):
        if not (item := _ITEM.fullmatch(line)):
            break
        items.append(item)
    if not items or items[0]["number"] and (items[0]["number"] != "1" or len(items) == 1):
        return ""
    answers = [after_phrase(item["text"]) for item in items]
    values = [
        x for x in answers if _FIRM.match(x) or _VALUE.search(x) and (words_of(x) or 0) <= MAX_WORDS
    ]
    return ", ".join(values or answers[:1])


def _first_sentence(text: str, is_tagged: bool = False) -> str:
    """The first sentence of a text, without its full stop; `is_tagged` as for `after_phrase`."""
    person = _PERSON.match(text)
    for end in _SENTENCE_END.finditer(text, person.end() if person else 0):
        is_short = _TITLE.search(text, 0, end.start())
        if is_tagged and not is_short:
            is_short = _INITIAL.search(text, 0, end.start())
        if not (end.group() == "." and is_short and _NAME.match(text, end.end())):
            return text[: end.start()]
    return text


def _formulas_at_start(tail: str) -> str:
    """The formulas at the start of a text, separated by commas; '' if it begins with no formula.

    Several formulas are taken only if they form a list.
    """
    formulas: list[str] = []
    joints: list[bool] = []
    at = end = 0
    while opener := next((o for o in _CLOSERS if tail.startswith(o, at)), None):
        closed = _CLOSERS[opener].search(tail, at + len(opener))
        if not closed:
            break
        formulas.append(tail[at + len(opener) : closed.start()].strip())
        end = closed.end()
        joint = _JOINT.match(tail, end)
        if not joint:
            break
        at = joint.end()
        joints.append(any(joint.groups()))
    stop = _SENTENCE_END.match(tail, end)
    is_list = any(joints[: len(formulas) - 1]) or stop or end == len(tail)
    return ", ".join(formulas if is_list else formulas[:1])


def _last_spans(sentence: str) -> str:
    """The contents of the last `$..$` and of those joined to it, separated by commas.

    'and', 'or' and commas can join them. The result is '' if there is no `$..$`.
    """
    spans = list(_SPAN.finditer(sentence))
    contents, joined = [], False
    for i, span in enumerate(reversed(spans)):
        if i:
            joint = _JOINT.fullmatch(sentence, span.end(), spans[-i].start())
            joined = joined or bool(joint and any(joint.groups()))
            if not joint or not joined:
                break
        contents.append(span[1])
    return ", ".join(reversed(contents))
