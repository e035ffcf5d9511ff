package nearest

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestName(t *testing.T) {
	candidates := []string{"epochs", "rl_episodes", "learning_rate", "seed", "mode", "beta"}
	for name, want := range map[string]string{
		"epohcs":       "epochs", // a swap is one edit
		"rl-episode":   "rl_episodes",
		"learning-rat": "learning_rate",
		"see":          "seed",
		"delta":        "", // two edits in five letters
		"x":            "",
		"":             "",
		"temperature":  "",
		"Seed":         "seed",
	} {
		expect.Same(t, want, Name(name, candidates), "%q", name)
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ca", "ac", 1}, {"abcd", "acbd", 1}} {
		expect.Same(t, test.want, editDistance(test.a, test.b), "%s, %s", test.a, test.b)
	}
}
