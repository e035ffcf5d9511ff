// Command release packs rltrain for other machines, in the folder dist:
//
//	go run ./scripts/release wheel      rltrain-VERSION-py3-none-manylinux_X_Y_MACHINE.whl, for pip; MACHINE: x86_64 or aarch64
//	go run ./scripts/release tarball    rltrain-VERSION-linux-MACHINE.tar.xz
//	go run ./scripts/release all        both, a list of components (SBOM), the changes and checksums
//
// It packs the libraries of build/lib and compiles the program. Two runs on one commit write the same bytes. Packages come
// without libtorch, which rltrain setup downloads.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/version"
)

const (
	dist  = "dist"
	stage = "build/release" // where files are stripped
)

// release is what all packages of a commit have in common.
type release struct {
	version string    // by PEP 440
	commit  time.Time // all files in packages are of this time
	files   []file

	components []component
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kinds []string) error {
	if len(kinds) == 0 {
		return fmt.Errorf("usage: release wheel | tarball | all")
	}
	r, err := newRelease()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dist, 0o755); err != nil {
		return err
	}
	for _, kind := range kinds {
		var path string
		switch kind {
		case "wheel":
			path, err = r.wheel()
		case "tarball":
			path, err = r.tarball()
		case "all":
			path, err = r.all()
		default:
			return fmt.Errorf("unknown package %q; want wheel, tarball or all", kind)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %.1f MB\n", path, float64(info.Size())/1e6)
	}
	return nil
}

// all writes everything that a release has, and returns the path of the checksums.
func (r *release) all() (string, error) {
	wheel, err := r.wheel()
	if err != nil {
		return "", err
	}
	tarball, err := r.tarball()
	if err != nil {
		return "", err
	}
	list, err := r.sbom(r.components)
	if err != nil {
		return "", err
	}
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return "", err
	}
	notes, err := changesOf(string(changes), version.Version)
	if err != nil {
		return "", err
	}
	names := []string{filepath.Base(wheel), filepath.Base(tarball)}
	for _, f := range []file{{"rltrain-" + r.version + ".cdx.json", list, 0o644}, {"changes.txt", []byte(notes), 0o644}} {
		if err := outfile.Write(filepath.Join(dist, f.path), f.data, f.mode); err != nil {
			return "", err
		}
		names = append(names, f.path)
	}
	var sums strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dist, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), name)
	}
	path := filepath.Join(dist, "SHA256SUMS")
	return path, outfile.Write(path, []byte(sums.String()), 0o644)
}

// changesOf is the section of a version in the list of changes, without its heading.
func changesOf(changes, version string) (string, error) {
	_, section, ok := strings.Cut(changes, "\n## "+version)
	if !ok {
		return "", fmt.Errorf("CHANGELOG.md has no section %s", version)
	}
	_, section, _ = strings.Cut(section, "\n")
	section, _, _ = strings.Cut(section, "\n## ")
	return strings.TrimSpace(section) + "\n", nil
}

// newRelease compiles the program and gathers the files.
func newRelease() (*release, error) {
	r := &release{version: version.Version}
	seconds, err := output("git", "log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, err
	}
	r.commit = time.Unix(n, 0).UTC()
	stamp, err := output("git", "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	// A commit without its version's tag is on the way to that version.
	tags, err := output("git", "tag", "--points-at", "HEAD")
	if err != nil {
		return nil, err
	}
	changes, err := output("git", "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	if changes != "" {
		stamp += "+"
	}
	if changes != "" || !strings.Contains("\n"+tags+"\n", "\nv"+version.Version+"\n") {
		r.version += ".dev0"
	}
	if r.components, err = components(); err != nil {
		return nil, err
	}
	r.files, err = gather(stamp)
	return r, err
}

// machine is the name that Linux gives this kind of processor.
func machine() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

// output runs a command and returns what it prints.
func output(name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func inStage(name string) string { return filepath.Join(stage, name) }
