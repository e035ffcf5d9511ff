package envs

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type noTask struct{ seed uint64 }

func (noTask) Len(Part) int                   { return 0 }
func (noTask) Episode(Part, int) (Env, error) { return nil, nil }

func TestRegistry(t *testing.T) {
	Register("countdown", func(seed uint64, s Settings) (Task, error) {
		from := 10
		return noTask{seed}, s.Read(map[string]any{"from": &from})
	})
	if !slices.Contains(Names(), "countdown") {
		t.Errorf("Names() = %v", Names())
	}
	task, err := New("countdown", 7, Settings{"from": "3"})
	if err != nil || task != (noTask{7}) {
		t.Errorf("New = %v, %v", task, err)
	}
	for _, test := range []struct {
		name     string
		settings Settings
		want     string
	}{
		{"countdwn", nil, `task "countdwn" is unknown (did you mean countdown?)`},
		{"countdown", Settings{"form": "3"}, "task countdown: option form does not apply (did you mean from?): choose from from"},
		{"countdown", Settings{"from": "x"}, `task countdown: option from: "x", want a whole number`},
	} {
		if _, err := New(test.name, 0, test.settings); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("New(%q, %v): error %v, want %q", test.name, test.settings, err, test.want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a name was registered twice")
		}
	}()
	Register("countdown", nil)
}

func TestSettingsRead(t *testing.T) {
	type values struct {
		Text  string
		Flag  bool
		Count int
		Share float64
	}
	got := values{Text: "kept", Count: 1}
	fields := map[string]any{"text": &got.Text, "flag": &got.Flag, "count": &got.Count, "share": &got.Share}
	if err := (Settings{"flag": "true", "count": "5", "share": "0.25"}).Read(fields); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(values{"kept", true, 5, 0.25}, got); diff != "" {
		t.Error(diff)
	}
}
