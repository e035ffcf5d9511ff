// Package version says which rltrain this is.
package version

import "runtime/debug"

// Version is the program's own; run.json and the model card record it.
const Version = "0.1.0"

// Commit is the commit that this program was built from, and whether the sources had changes; "" if the build does not
// know it.
func Commit() (commit string, changed bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			commit = setting.Value
		case "vcs.modified":
			changed = setting.Value == "true"
		}
	}
	return commit, changed
}
