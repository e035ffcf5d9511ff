package train

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/run"
)

// inputs are sums of what the settings name: files and folders, commits of the Hub, files in command lines.
func (t *trainer) inputs() (run.Inputs, error) {
	in := run.Inputs{}
	for setting, texts := range t.config.Named() {
		for _, text := range texts {
			for _, name := range mentioned(text) {
				sum, known := t.sums[name]
				if !known {
					var err error
					if sum, err = run.Sum(name, t.config.General.OutputDir); err != nil {
						return nil, t.config.Errorf(setting, "%v", err)
					}
					if t.sums == nil {
						t.sums = map[string]string{}
					}
					t.sums[name] = sum
				}
				if sum == "" && t.hub != nil {
					sum = t.hub.Commit(name)
				}
				in.Add(setting, name, sum)
			}
		}
	}
	return in, nil
}

// sameOnAllRanks refuses to train if a rank reads other inputs than rank 0, or cannot read its own because of err.
func (t *trainer) sameOnAllRanks(in run.Inputs, err error) error {
	all, err := dist.Together(t.group, in, err)
	if err != nil {
		return err
	}
	for rank, other := range all {
		for _, in := range []run.Inputs{all[0], other} { // either may lack what the other has
			for _, setting := range slices.Sorted(maps.Keys(in)) {
				for _, name := range slices.Sorted(maps.Keys(in[setting])) {
					if a, b := other[setting][name], all[0][setting][name]; a != b {
						return t.config.Errorf(setting, "%s has different content on rank %d (%s) and rank 0 (%s)", name, rank, cmp.Or(a, "nothing"), cmp.Or(b, "nothing"))
					}
				}
			}
		}
	}
	return nil
}

// system are folders whose files belong to the machine, such as interpreters.
var system = []string{"/usr/", "/bin/", "/lib", "/opt/", "/dev/", "/proc/", "/sys/", "/etc/"}

// mentioned are the names that may be files in a setting: the whole of it, or words of a command line, also behind cmd: or =.
func mentioned(text string) (names []string) {
	add := func(name string) {
		name = strings.TrimSuffix(name, "/")
		root := strings.Trim(name, "./") == "" // a command line may name a folder to work in
		if !root && !slices.ContainsFunc(system, func(folder string) bool { return strings.HasPrefix(name, folder) }) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	add(text)
	words, err := program.Words(text)
	if err != nil {
		words = strings.Fields(text)
	}
	for _, word := range words {
		for _, part := range append([]string{word}, strings.FieldsFunc(word, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`'",;|&<>()=`, r) })...) {
			add(part)
			for {
				_, after, found := strings.Cut(part, ":")
				if !found {
					break
				}
				add(after)
				part = after
			}
		}
	}
	return names
}

// sameInputs refuses to resume a stage whose inputs are others than it began with, unless the user allows it; then they are
// reasons why results may differ.
func (t *trainer) sameInputs(dir string, was, now run.Inputs) (inexact []string, err error) {
	c := t.config
	var allowed []string
	for _, name := range c.General.AllowChanged {
		name = strings.ReplaceAll(name, "-", "_")
		if _, names := c.Named()[name]; !names {
			return nil, c.Errorf("allow_changed", "%s names no file here; choose from %s", name, strings.Join(slices.Sorted(maps.Keys(c.Named())), ", "))
		}
		allowed = append(allowed, name)
	}
	var settings, refused []string
	for _, changed := range was.Changed(now) {
		if slices.Contains(allowed, changed.Setting) {
			inexact = append(inexact, fmt.Sprintf("%s: the content of %s has changed", changed.Setting, changed.Name))
			continue
		}
		refused = append(refused, changed.Name)
		if !slices.Contains(settings, changed.Setting) {
			settings = append(settings, changed.Setting)
		}
	}
	if refused == nil {
		return inexact, nil
	}
	return nil, c.Errorf(settings[0], "the content of %s has changed since the run in %s began; restore it, start over without --resume, or pass --allow-changed %s to continue inexactly",
		strings.Join(refused, ", "), dir, strings.Join(settings, ","))
}
