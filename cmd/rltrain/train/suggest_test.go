package train

import (
	"testing"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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
		value := must.Get(dataset.Parse(row))(t)
		got, _ := taskOf(dataset.Record{File: "f", Line: 1, Fields: value.(dataset.Object)})
		expect.True(t, got == want, "%s is for task %q, want %q", row, got, want)
	}
}
