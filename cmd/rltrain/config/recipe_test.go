package config

import (
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the recipes' comments and layout, and the golden files")

// A task's recipe holds every setting of the task once, in the table's order, with the table's help beside it.
func TestRecipesMatchTable(t *testing.T) {
	for _, task := range tasks {
		defaults, err := Defaults(task.name)
		if err != nil {
			t.Fatal(err)
		}
		want := defaults.render(func(k *key) bool { return k.scope.of(task.name) != 0 }, func(k *key) string { return k.help })
		file := "../recipes/" + task.name + ".yaml"
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(string(want), string(task.recipe)); diff != "" {
			t.Errorf("%s (-table +file); go test -run Recipe -update rewrites it:\n%s", file, diff)
		}
	}
}

func TestTableMatchesConfig(t *testing.T) {
	config := reflect.TypeFor[Config]()
	for i, k := range keys {
		if tag := config.Field(i).Tag.Get("yaml"); tag != k.name {
			t.Errorf("field %d is tagged %q, the table has %q", i, tag, k.name)
		}
		if k.help == "" || k.scope == 0 || k.group == "" {
			t.Errorf("%s: help, scope or group is missing", k.name)
		}
		if (k.kind == reflect.Int || k.kind == reflect.Float64) && !k.limits.set {
			t.Errorf("%s: a number without limits", k.name)
		}
	}
	exported := 0
	for i := range config.NumField() {
		if config.Field(i).IsExported() {
			exported++
		}
	}
	if exported != len(keys) {
		t.Errorf("Config has %d settings, the table %d", exported, len(keys))
	}
}

func TestAliasesPointAtKeys(t *testing.T) {
	for _, a := range aliases {
		if find(a.key) == nil {
			t.Errorf("alias %s: no key %s", a.name, a.key)
		}
		if find(a.name) != nil {
			t.Errorf("alias %s is a key", a.name)
		}
	}
	for name := range refused {
		if isName(name) {
			t.Errorf("%s is refused and understood", name)
		}
	}
}
