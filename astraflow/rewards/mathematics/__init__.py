"""Reading and comparison of mathematical answers, in LaTeX or plain text, without evaluation of any code."""
