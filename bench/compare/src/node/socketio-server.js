// Socket.IO with connection state recovery, and the presence that its users write by hand: whoever is gone for 90 seconds has
// left, whoever is not recovered has joined. Prints its port when it listens.
"use strict";
const { createServer } = require("http");
const { Server } = require("socket.io");

const http = createServer();
const io = new Server(http, {
  transports: ["websocket"],
  perMessageDeflate: false,
  connectionStateRecovery: { maxDisconnectionDuration: 120000, skipMiddlewares: true },
});
const GRACE_MS = 90000;
const leaving = new Map();

io.on("connection", (socket) => {
  const { index, watch } = socket.handshake.auth;
  if (watch) {
    socket.join("watchers");
    return;
  }
  if (index === undefined) {
    socket.on("send", (to, number, done) => {
      io.to("s" + to).emit("m", number);
      done();
    });
    return;
  }
  socket.join("s" + index);
  const timer = leaving.get(index);
  if (timer !== undefined) {
    clearTimeout(timer);
    leaving.delete(index);
  } else if (!socket.recovered) {
    io.to("watchers").emit("presence", "joined", index);
  }
  // Recovery needs one event that was received before the break.
  if (!socket.recovered) {
    socket.emit("hello");
  }
  socket.on("disconnect", () => {
    const left = () => {
      leaving.delete(index);
      io.to("watchers").emit("presence", "left", index);
    };
    leaving.set(index, setTimeout(left, GRACE_MS));
  });
});

http.listen(Number(process.argv[2] || 0), "127.0.0.1", 8192, () => {
  console.log(http.address().port);
});
