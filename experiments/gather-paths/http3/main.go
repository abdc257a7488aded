// A server and a client of HTTP/3, by quic-go: what `gather` stands beside in this experiment. Its congestion control is Cubic.
//
//	http3 serve ADDRESS FOLDER CERTIFICATE KEY
//	http3 get URL FILE
//
// As curl's in the same table, the client takes any certificate and verifies nothing that comes.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/quic-go/quic-go/http3"
)

func serve(address, folder, certificate, key string) error {
	return http3.ListenAndServeQUIC(address, certificate, key, http.FileServer(http.Dir(folder)))
}

func get(url, path string) error {
	transport := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.Close()
	answer, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, answer.Body); err != nil {
		return err
	}
	return file.Close()
}

func main() {
	var err error
	switch words := os.Args[1:]; {
	case len(words) == 5 && words[0] == "serve":
		err = serve(words[1], words[2], words[3], words[4])
	case len(words) == 3 && words[0] == "get":
		err = get(words[1], words[2])
	default:
		err = fmt.Errorf("usage: http3 serve ADDRESS FOLDER CERTIFICATE KEY | http3 get URL FILE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "http3:", err)
		os.Exit(1)
	}
}
