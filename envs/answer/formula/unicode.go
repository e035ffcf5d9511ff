package formula

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// symbols are characters with a LaTeX command or an ASCII spelling.
var symbols = map[rune]string{
	'−': "-", '‐': "-", '‑': "-", '–': "-", '—': "-", '＋': "+", '⁄': "/", '∕': "/", '÷': `\div `, '×': `\times `, '⋅': `\cdot `, '·': `\cdot `, '∙': `\cdot `, '∗': "*",
	'√': `\sqrt `, 'π': `\pi `, '∞': `\infty `, '≤': `\le `, '⩽': `\le `, '≥': `\ge `, '⩾': `\ge `, '≠': `\ne `, '≈': `\approx `, '≡': `\equiv `, '±': `\pm `, '∓': `\mp `,
	'∪': `\cup `, '∩': `\cap `, '∖': `\setminus `, '∈': `\in `, '∅': `\emptyset `, 'ℝ': `\mathbb{R}`, 'ℤ': `\mathbb{Z}`, 'ℕ': `\mathbb{N}`, 'ℚ': `\mathbb{Q}`, 'ℂ': `\mathbb{C}`,
	'°': `^\circ `, 'º': `^\circ `, '′': "'", '’': "'", '‘': "'", '“': `"`, '”': `"`, '⟨': `\langle `, '⟩': `\rangle `, '〈': `\langle `, '〉': `\rangle `, '⌊': `\lfloor `, '⌋': `\rfloor `, '⌈': `\lceil `, '⌉': `\rceil `,
	'α': `\alpha `, 'β': `\beta `, 'γ': `\gamma `, 'δ': `\delta `, 'ε': `\epsilon `, 'θ': `\theta `, 'λ': `\lambda `, 'μ': `\mu `, 'ρ': `\rho `, 'σ': `\sigma `, 'τ': `\tau `, 'φ': `\phi `, 'ω': `\omega `,
	'Δ': `\Delta `, 'Θ': `\Theta `, 'Ω': `\Omega `, '∠': `\angle `, '△': `\triangle `, '→': `\to `, '⇒': `\Rightarrow `, '∨': `\vee `, '∧': `\wedge `, '…': `\ldots `, '⋯': `\ldots `, '∣': `\mid `,
	'\u00a0': " ", '\u2009': " ", '\u202f': " ", '\u2002': " ", '\u2003': " ", '\u3000': " ", '\u200b': "", '\ufeff': "", '、': ",", '，': ",", '。': ".", '；': ";", '：': ":",
	'∑': `\sum `, '∏': `\prod `, '∫': `\int `, '￥': "¥", '￡': "£", '∛': `\sqrt[3]`, '∜': `\sqrt[4]`,
	'½': `\frac{1}{2}`, '⅓': `\frac{1}{3}`, '⅔': `\frac{2}{3}`, '¼': `\frac{1}{4}`, '¾': `\frac{3}{4}`, '⅕': `\frac{1}{5}`, '⅖': `\frac{2}{5}`, '⅗': `\frac{3}{5}`, '⅘': `\frac{4}{5}`,
	'⅙': `\frac{1}{6}`, '⅚': `\frac{5}{6}`, '⅛': `\frac{1}{8}`, '⅜': `\frac{3}{8}`, '⅝': `\frac{5}{8}`, '⅞': `\frac{7}{8}`,
}

// typedArea matches m² and m³ after a number, where m is not a variable.
var typedArea = regexp.MustCompile(`(\d) ?m([²³])`)

// scripts are superscript and subscript characters: their kind, and their plain form.
var scripts = func() map[rune]struct{ mark, plain byte } {
	const level = "0123456789+-()nx"
	table := map[rune]struct{ mark, plain byte }{}
	for mark, characters := range map[byte]string{'^': "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ", '_': "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₓ"} {
		for i, r := range []rune(characters) {
			table[r] = struct{ mark, plain byte }{mark, level[i]}
		}
	}
	return table
}()

// plainText converts mathematical characters to ASCII and LaTeX: full-width forms, signs, fractions, superscripts and
// subscripts. Unknown characters stay.
func plainText(s string) string {
	if isASCII(s) {
		return s
	}
	s = typedArea.ReplaceAllString(s, `$1 \text{m}$2`)
	var b strings.Builder
	script := byte(0) // '^' or '_' inside superscripts or subscripts
	for _, r := range s {
		shifted := scripts[r]
		kind := shifted.mark
		if kind != script {
			if script != 0 {
				b.WriteByte('}')
			}
			if kind != 0 {
				b.WriteByte(kind)
				b.WriteByte('{')
			}
			script = kind
		}
		switch text, known := symbols[r]; {
		case kind != 0:
			b.WriteByte(shifted.plain)
		case known:
			b.WriteString(text)
		case '！' <= r && r <= '～': // full width
			b.WriteByte(byte(r - '！' + '!'))
		case r == utf8.RuneError:
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	if script != 0 {
		b.WriteByte('}')
	}
	return b.String()
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
