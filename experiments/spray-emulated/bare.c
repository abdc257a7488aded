// Baseline of the tunnel: packets from a TUN device into UDP and back, one at a time, without
// coding, encryption or a choice of path. `run.py speed` builds and runs it beside the agent.
// Usage: bare DEVICE PEER
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	struct ifreq request = { 0 };
	int tun = open("/dev/net/tun", O_RDWR);
	request.ifr_flags = IFF_TUN | IFF_NO_PI;
	strncpy(request.ifr_name, words[1], IFNAMSIZ - 1);
	if (tun < 0 || ioctl(tun, TUNSETIFF, &request) < 0)
		return 1;
	int udp = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in peer = { .sin_family = AF_INET, .sin_port = htons(7300) };
	if (bind(udp, (struct sockaddr *)&peer, sizeof peer) < 0 || inet_pton(AF_INET, words[2], &peer.sin_addr) != 1 ||
	    connect(udp, (struct sockaddr *)&peer, sizeof peer) < 0)
		return 1;
	static char packet[65536];
	struct pollfd both[2] = { { tun, POLLIN, 0 }, { udp, POLLIN, 0 } };
	while (poll(both, 2, -1) >= 0) {
		ssize_t length;
		if (both[0].revents && (length = read(tun, packet, sizeof packet)) > 0)
			length = send(udp, packet, length, 0);
		if (both[1].revents && (length = recv(udp, packet, sizeof packet, 0)) > 0)
			length = write(tun, packet, length);
	}
	return 0;
}
