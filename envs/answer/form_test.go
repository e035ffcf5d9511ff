package answer_test

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestFinished(t *testing.T) {
	tests := []struct{ gold, finished, unfinished string }{ // answers equal to gold, by |
		{"4", `4|4.0|+4|$4$|\boxed{4}|x = 4|74 - 70 = 4|4 apples|400%|4 = 4|4 = x|74 - 70 = 4 = x|4...`, `74 - 70|74-70|2+2|8/2|\frac{8}{2}|4!/6|2^2|\sqrt{16}|2·2|2*2|1·4|5 + -1|-(-4)+0|\log_2 16|(74 - 70)|\boxed{74-70}|x = 74 - 70|4 + 0|3.5 + 0.5|12/3 apples|abs(-4)|\binom{4}{1}|2^{2^1}|\sum_{i=1}^{4} 1|74 - 70 =...|74 - 70 = …|74 - 70 = x|x = 74 - 70 = y|74 - 70 = \ldots`},
		{"-4", `-4|- 4|−4`, `70 - 74|-8/2|-(2+2)|-2·2`},
		{"1/2", `1/2|0.5|\frac12|50%|\frac{1}{2}`, `2/4|3/6|1 - 1/2|0.25·2|\frac{5}{10}|1/4 + 1/4`},
		{"3/2", `3/2|1.5|1 1/2|1\frac{1}{2}`, `1 + 1/2|6/4|3·0.5`},
		{"-1/2", `-1/2|-0.5|\frac{-1}{2}|-\frac12`, `-2/4|1/2 - 1`},
		{"1500", `1500|1,500|1.5e3|1.5 × 10^3|1.5 \cdot 10^3`, `15·100|10^3 + 500|1000 + 500`},
		{"0.125", `0.125|1/8|12.5%`, `1/4/2|0.5^3|2^{-3}`},
		{`2\sqrt{3}`, `2\sqrt{3}|\sqrt{12}`, `\sqrt{3} + \sqrt{3}`},
		{`\pi/2`, `\pi/2|\frac{\pi}{2}`, `\pi - \pi/2|\arcsin 1`},
		{"(1, 2)", `(1, 2)|(1,2)`, `(1, 1+1)|(2-1, 2)`},
		{"1, 2", `1, 2|1 and 2`, `1, 4/2`},
		{"x^2 + 2x + 1", `x^2 + 2x + 1|(x+1)^2`, ``},
		{"yes", `yes|no doubt: yes`, ``},
	}
	for _, test := range tests {
		for _, a := range strings.Split(test.finished, "|") {
			expect.True(t, answer.Finished(test.gold, a), "%q is an answer to %q, but taken for unfinished", a, test.gold)
		}
		for _, a := range strings.Split(test.unfinished, "|") {
			expect.True(t, a == "" || !answer.Finished(test.gold, a), "%q is taken for a finished answer to %q", a, test.gold)
		}
	}
}
