package formula

// functions are the known functions, by spelling.
var functions = map[string]string{
	"sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "tg": "tan", "ctg": "cot", "cosec": "csc",
	"arcsin": "arcsin", "arccos": "arccos", "arctan": "arctan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "arctg": "arctan", "arccot": "arccot", "arcsec": "arcsec", "arccsc": "arccsc",
	"sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "coth": "coth", "sech": "sech", "csch": "csch", "arcsinh": "arcsinh", "arccosh": "arccosh", "arctanh": "arctanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
	"ln": "ln", "log": "log", "lg": "lg", "exp": "exp", "abs": "abs", "sgn": "sgn", "sign": "sgn", "arg": "arg", "Re": "Re", "Im": "Im",
	"max": "max", "min": "min", "gcd": "gcd", "lcm": "lcm", "det": "det", "dim": "dim", "deg": "deg", "ker": "ker", "floor": "floor", "ceil": "ceil", "factorial": "factorial", "cbrt": "cbrt",
	"binom": "binom",
}

// severalArguments are functions with several arguments.
var severalArguments = map[string]bool{"max": true, "min": true, "gcd": true, "lcm": true, "binom": true, "log": true}

// constantNames are constants and sets of numbers, by command or word.
var constantNames = map[string]string{
	"pi": "pi", "infty": "infinity", "infinity": "infinity", "oo": "infinity", "inf": "infinity", "emptyset": "empty", "varnothing": "empty", "reals": "R", "R": "R",
}

// letters are the commands for variables.
var letters = map[string]bool{
	"alpha": true, "beta": true, "gamma": true, "delta": true, "epsilon": true, "varepsilon": true, "zeta": true, "eta": true, "theta": true, "vartheta": true, "iota": true, "kappa": true, "lambda": true, "mu": true, "nu": true, "xi": true,
	"rho": true, "varrho": true, "sigma": true, "tau": true, "upsilon": true, "phi": true, "varphi": true, "chi": true, "psi": true, "omega": true, "Gamma": true, "Delta": true, "Theta": true, "Lambda": true, "Xi": true, "Pi": true, "Sigma": true,
	"Phi": true, "Psi": true, "Omega": true, "ell": true, "hbar": true, "aleph": true, "partial": true, "nabla": true, "Upsilon": true,
}

// figures are commands before the letters of a geometric figure, as in \angle ABC.
var figures = map[string]bool{"angle": true, "triangle": true, "measuredangle": true, "square": true, "odot": true, "overline": true, "overrightarrow": true, "widehat": true, "overarc": true, "hat": true, "tilde": true, "widetilde": true, "bar": true, "dot": true}

// relations are the operators between two sides, by spelling.
var relations = map[string]string{
	"=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", "<>": "!=",
	"le": "<=", "leq": "<=", "leqslant": "<=", "lt": "<", "ge": ">=", "geq": ">=", "geqslant": ">=", "gt": ">", "ne": "!=", "neq": "!=",
	"approx": "~", "simeq": "~", "doteq": "~", "thickapprox": "~", "approxeq": "~", "in": "in", "notin": "notin", "equiv": "equiv", "sim": "sim", "cong": "cong", "to": "to", "propto": "propto", "perp": "perp", "parallel": "parallel",
	"subset": "subset", "subseteq": "subseteq", "mapsto": "mapsto", "ll": "<<", "gg": ">>",
}

// applied are letters that are functions if a bracket follows.
var applied = map[string]bool{"f": true, "g": true, "h": true, "F": true, "G": true, "H": true, "O": true, "Theta": true, "Omega": true, "phi": true, "Gamma": true, "psi": true, "zeta": true, "P": true, "Q": true, "T": true, "R": true, "p": true, "q": true}

// groups of letters that are products, although three or more are typed together.
var productLetters = []string{"abcd", "wxyz", "pqrs", "klmn", "uvw", "rst", "ABCD", "XYZ", "PQR"}

// words of two letters that are not products.
var shortWords = map[string]bool{
	"no": true, "on": true, "up": true, "is": true, "am": true, "pm": true, "us": true, "it": true, "he": true, "we": true, "me": true, "my": true, "or": true, "if": true, "in": true, "of": true, "to": true, "so": true, "do": true, "go": true, "by": true, "at": true, "as": true, "an": true, "be": true,
}
