package nearest

import "testing"

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
		if got := Name(name, candidates); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ca", "ac", 1}, {"abcd", "acbd", 1}} {
		if got := editDistance(test.a, test.b); got != test.want {
			t.Errorf("%s, %s: got %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
