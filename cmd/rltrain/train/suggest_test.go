package train

import (
	"testing"

	"github.com/rltrain/rltrain/envs/dataset"
)

func TestTaskOf(t *testing.T) {
	for row, want := range map[string]string{
		`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`: "chat",
		`{"prompt":"q","completion":"a"}`:                                                 "chat",
		`{"prompt":"q","chosen":"a","rejected":"b"}`:                                      "preference",
		`{"prompt":"q","completion":"a","label":true}`:                                    "preference",
		`{"prompt":"q","answer":"4"}`:                                                     "prompts",
		`{"text":"q","label":"law"}`:                                                      "intent",
		`{"text":"q"}`:                                                                    "",
		`{"question":"q","answer":"4"}`:                                                   "",
	} {
		value, err := dataset.Parse(row)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := taskOf(dataset.Record{File: "f", Line: 1, Fields: value.(dataset.Object)}); got != want {
			t.Errorf("%s is for task %q, want %q", row, got, want)
		}
	}
}
