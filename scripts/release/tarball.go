package main

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rltrain/rltrain/internal/outfile"
)

// tarball writes the tarball and returns its path. Besides the files of all packages it has what building a program with
// rltrain's packages needs.
func (r *release) tarball() (string, error) {
	tokenizers, err := output("scripts/setup/tokenizers.sh")
	if err != nil {
		return "", err
	}
	library, err := os.ReadFile(filepath.Join(tokenizers, "libtokenizers.a"))
	if err != nil {
		return "", err
	}
	files := append(r.files, file{"lib/rltrain/libtokenizers.a", library, 0o644}, file{othersLicences, licences(r.components), 0o644})
	for _, name := range []string{"README.md", "LICENSE"} {
		f, err := readFile(name)
		if err != nil {
			return "", err
		}
		files = append(files, f)
	}
	stem := "rltrain-" + r.version + "-linux-" + machine()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Name: stem + "/" + f.path, Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: r.commit, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return "", err
		}
		if _, err := w.Write(f.data); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	// The number of threads does not change the blocks.
	compress := exec.Command("xz", "-6", "-T0", "--block-size=16MiB")
	compress.Stdin, compress.Stderr = &archive, os.Stderr
	packed, err := compress.Output()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dist, stem+".tar.xz")
	return path, outfile.Write(path, packed, 0o644)
}
