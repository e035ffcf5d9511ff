package equiv_test

import (
	"testing"

	"github.com/rltrain/rltrain/envs/answer/equiv"
)

func BenchmarkEqual(b *testing.B) {
	for name, pairs := range map[string][][2]string{
		"plain numbers":   {{"18", "18"}, {"18", "17.5"}, {"-3", "3"}, {"1200", "1200.00"}},
		"wrapped numbers": {{"18", `$\boxed{18}$`}, {`\boxed{18}`, `$17.5$`}, {"-3", `\(-3\)`}, {`$1200$`, "**1,200**"}},
		"numbers":         {{"1,234", "1234"}, {`\frac{3}{4}`, "0.75"}, {"18", `18\text{ dollars}`}, {"$26", "26.00"}},
		"expressions": {
			{`\frac{x+2}{7}`, `\frac{x}{7}+\frac{2}{7}`}, {"(x-2)(x+2)", "x^2-4"}, {`2\sqrt{2}`, `\sqrt{8}`}, {`x \ge 5`, `[5,\infty)`},
			{"2x+4y-3=0", `y=-\frac12x+\frac34`}, {"(1, 2)", "(1, 3)"}, {"4,-8,-10", "-10,4,-8"}, {`\frac{1}{\sqrt2}`, `\frac{\sqrt2}{2}`},
		},
		"evaluated": {
			{`\tan^2(y)+1`, `\sec^2(y)`}, {`\sqrt{3+2\sqrt2}`, `1+\sqrt2`}, {`\ln 4`, `2\ln 2`}, {`2\sin b\cos a`, `\sin(a+b)-\sin(a-b)`},
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := pairs[i%len(pairs)]
				equiv.Equal(p[0], p[1])
			}
		})
	}
}
