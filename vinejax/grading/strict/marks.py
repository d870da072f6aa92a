"""Characters that mark structure in a cleaned answer. `clean_answer` drops them from its input.

Words stand in OPEN..CLOSE, sets in SET_OPEN..SET_CLOSE, and rows of matrices end in ROW. AND and OR
replace the words 'and' and 'or', which separate items as commas do.
"""

OPEN, CLOSE = "\ue000", "\ue001"
ROW = "\ue002"
MATRIX, MATRIX_END = "\ue003", "\ue004"
AND, OR = "\ue005", "\ue006"
SET_OPEN, SET_CLOSE = "\u2983", "\u2984"
ALL = OPEN + CLOSE + ROW + MATRIX + MATRIX_END + AND + OR + SET_OPEN + SET_CLOSE
SEPARATORS = ",;" + AND + OR
